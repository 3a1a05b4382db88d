"""What the kernel counts on TCP sockets, by sock_diag: no process is touched or asked."""

import socket
import struct
from typing import Dict, Tuple

SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST_DUMP = 0x301
NLMSG_ERROR, NLMSG_DONE = 2, 3
TCP_ESTABLISHED = 1
INET_DIAG_INFO = 2
# Of bytes_received in the kernel's struct tcp_info.
BYTES_RECEIVED_AT = 128

# (local address, local port, remote address, remote port)
Ends = Tuple[str, int, str, int]


def received() -> Dict[Ends, int]:
    """Bytes that each established IPv4 connection of this network namespace received."""
    found: Dict[Ends, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as netlink:  # NETLINK_SOCK_DIAG
        wanted = struct.pack(
            "=BBBxI48x", socket.AF_INET, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1),
            1 << TCP_ESTABLISHED,
        )
        header = struct.pack(
            "=IHHII", 16 + len(wanted), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1, 0
        )
        netlink.send(header + wanted)
        while True:
            content = netlink.recv(1 << 20)
            at = 0
            while at < len(content):
                length, kind = struct.unpack_from("=IH", content, at)
                if kind == NLMSG_DONE:
                    return found
                if kind == NLMSG_ERROR:
                    raise OSError("the kernel refused to list its sockets")
                _take(content[at + 16:at + length], found)
                at += (length + 3) & ~3


def _take(message: bytes, found: Dict[Ends, int]) -> None:
    source_port, target_port = struct.unpack_from("!HH", message, 4)
    source, target = socket.inet_ntoa(message[8:12]), socket.inet_ntoa(message[24:28])
    at = 72
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == INET_DIAG_INFO and length >= 4 + BYTES_RECEIVED_AT + 8:
            [count] = struct.unpack_from("=Q", message, at + 4 + BYTES_RECEIVED_AT)
            found[(source, source_port, target, target_port)] = count
        at += (max(length, 4) + 3) & ~3


def received_at(addresses: "list[str]") -> Dict[str, int]:
    """Bytes that sockets with each of these local addresses received, together."""
    sums = dict.fromkeys(addresses, 0)
    for (local, _, _, _), count in received().items():
        if local in sums:
            sums[local] += count
    return sums
