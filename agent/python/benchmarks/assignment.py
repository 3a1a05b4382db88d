"""Push and pull of ResNet-50's blocks: where the master assigns them against MXNet's rule.

Real MXNet processes on this machine, started as an agent starts them, each server on an
address of its own: two workers push and pull all 157 blocks in every step, and no step
computes anything. Bytes are those that the kernel counted on each server's sockets,
pushes are those that the servers logged. Steps with either layout alternate, so that
both meet the same disturbances.

    python assignment.py --optimus PATH                     counts, and times unshaped
    python assignment.py --optimus PATH --shape-mbit 200    the same with each server's
                                                            ingress shaped; needs root

Prints one JSON object; ``--plot FILE`` draws the times as SVG. ``PATH`` is the command
optimus, whose ``assign`` is the master's code.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(FOLDER), FOLDER]
# Read when MXNet is imported, below and in all processes that come of this one.
os.environ["OMP_NUM_THREADS"] = "1"

import mxnet as mx

import optimus
import wire

WORKERS = 2
WAIT_S_MAX = 60.0


def resnet50_blocks() -> List[int]:
    """Parameters of each block of ResNet-50 for ImageNet, in the order of MXNet's symbol."""
    blocks = [3, 3, 3 * 64 * 49, 64, 64]  # of the input: means and scales, convolution, norm
    before = 64
    for middle, units in ((64, 3), (128, 4), (256, 6), (512, 3)):
        after = 4 * middle
        for unit in range(units):
            blocks += [before, before, before * middle]
            blocks += [middle, middle, middle * middle * 9]
            blocks += [middle, middle, middle * after]
            if unit == 0:
                blocks.append(before * after)
            before = after
    return blocks + [before, before, before * 1000, 1000]


def assigned(command: str, blocks: Sequence[int], servers: int) -> List[List[List[int]]]:
    """Parts (server, elements) of each block, by the master's code."""
    table = "parameters\n" + "".join(f"{size}\n" for size in blocks)
    answer = subprocess.run(
        [command, "assign", "--blocks", "-", "--servers", str(servers), "-o", "json"],
        input=table, stdout=subprocess.PIPE, universal_newlines=True, check=True,
    )
    return [
        [[part["server"], part["parameters"]] for part in block["parts"]]
        for block in json.loads(answer.stdout)["blocks"]
    ]


# -- one process of a job ---------------------------------------------------------------


def run_task() -> None:
    """A worker: does what its stdin says and tells how long that took, in s."""
    job = optimus.init()  # servers and the scheduler stay in here
    store = job.kvstore()
    assert store is not None, "an agent has started this process"
    sizes = resnet50_blocks()
    keys = list(range(len(sizes)))
    store.init(keys, [mx.nd.zeros((size,)) for size in sizes])
    store.open()
    gradients = [mx.nd.zeros((size,)) for size in sizes]
    weights = [mx.nd.zeros((size,)) for size in sizes]
    mx.nd.waitall()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.monotonic()
        for key in reversed(keys):  # as the trainer does after a backward pass
            store.pushpull(key, gradients[key], out=weights[key], priority=-key)
        store.settle()
        mx.nd.waitall()
        print(time.monotonic() - began, flush=True)


# -- the processes of a job -------------------------------------------------------------


class Group:
    """A job with so many servers; server i is at ``addresses[i]``."""

    def __init__(
        self, addresses: List[str], blocks: Optional[List[List[List[int]]]], verbose: bool
    ) -> None:
        """``blocks``: where they lie; None leaves it to MXNet. ``verbose``: count pushes."""
        self.addresses = addresses
        self._folder = tempfile.TemporaryDirectory(prefix="optimus-bench-")
        self._pids: List[int] = []
        self._workers: List[Any] = []
        common = self._common(len(addresses), blocks)
        server = {"PS_VERBOSE": "2"} if verbose else {}
        self._start("scheduler", 0, common)
        for index, address in enumerate(addresses):
            self._start("server", index, dict(common, DMLC_NODE_HOST=address, **server))
        for index in range(WORKERS):
            self._start("worker", index, common)
        for _, answers in self._workers:
            assert answers.readline() == "ready\n", self.errors()

    def _common(
        self, servers: int, blocks: Optional[List[List[List[int]]]]
    ) -> Dict[str, str]:
        directory = self._folder.name
        if blocks is not None:
            with open(os.path.join(directory, "assignment.json"), "w", encoding="utf-8") as file:
                json.dump({"schema": "optimus.layout/1", "blocks": blocks}, file)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return {
            "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NODE_HOST": "127.0.0.1", "DMLC_NUM_WORKER": str(WORKERS),
            "DMLC_NUM_SERVER": str(servers), "OPTIMUS_SERVERS": str(servers),
            "OPTIMUS_WORKERS": str(WORKERS), "OPTIMUS_JOB": "j1", "OPTIMUS_GENERATION": "1",
            "OPTIMUS_MODE": "sync", "OPTIMUS_EPOCHS_MAX": "1", "OPTIMUS_GLOBAL_BATCH": "64",
            "OPTIMUS_DIR": directory, "OPTIMUS_ASSIGNMENT": "stock" if blocks is None else "wait",
        }

    def _start(self, role: str, index: int, variables: Dict[str, str]) -> None:
        """Fork: MXNet is imported already, which takes most of a start."""
        orders_from, orders_to = os.pipe()
        answers_from, answers_to = os.pipe()
        errors = os.path.join(self._folder.name, f"{role}{index}.err")
        child = os.fork()
        if child == 0:
            os.environ.update(variables, OPTIMUS_ROLE=role, OPTIMUS_INDEX=str(index))
            error_file = os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600)
            for source, target in ((orders_from, 0), (answers_to, 1), (error_file, 2)):
                os.dup2(source, target)
            os.closerange(3, max(orders_to, answers_to, error_file) + 1)
            sys.stdin = open(0, encoding="utf-8", closefd=False)
            try:
                run_task()
            finally:
                os._exit(1)
        os.close(orders_from)
        os.close(answers_to)
        self._pids.append(child)
        ends = (open(orders_to, "w", encoding="utf-8"), open(answers_from, encoding="utf-8"))
        if role == "worker":
            self._workers.append(ends)
        else:
            for end in ends:
                end.close()

    def step(self) -> float:
        """Seconds that one step took: those of its slowest worker."""
        for orders, _ in self._workers:
            orders.write("step\n")
            orders.flush()
        return max(float(answers.readline() or self._lost()) for _, answers in self._workers)

    def _lost(self) -> float:
        raise RuntimeError(f"a worker is gone:\n{self.errors()}")

    def pushes(self) -> int:
        """Pushes that the servers have logged so far."""
        # Answers, which they log as well, are no requests.
        return sum(
            "request=1" in line and "push=1" in line
            for index in range(len(self.addresses)) for line in self._lines(f"server{index}")
        )

    def _lines(self, task: str) -> List[str]:
        with open(os.path.join(self._folder.name, f"{task}.err"), encoding="utf-8") as file:
            return file.read().splitlines()

    def errors(self) -> str:
        """The end of what each process has said to stderr."""
        names = sorted(name for name in os.listdir(self._folder.name) if name.endswith(".err"))
        return "\n".join(f"-- {n}\n" + "\n".join(self._lines(n[:-4])[-5:]) for n in names)

    def close(self) -> None:
        """Kill all processes."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for ends in self._workers:
            for end in ends:
                end.close()
        self._folder.cleanup()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# -- measuring --------------------------------------------------------------------------


def counted(addresses: List[str], blocks: Optional[List[List[List[int]]]]) -> Dict[str, Any]:
    """Pushes of a step and worker, and bytes of a step that each server's sockets received."""
    steps = 2
    with Group(addresses, blocks, verbose=True) as group:
        group.step()  # connections are made in the first one
        pushes, received = group.pushes(), wire.received_at(addresses)
        for _ in range(steps):
            group.step()
        pushes, later = group.pushes() - pushes, wire.received_at(addresses)
    sizes = [(later[address] - received[address]) / steps for address in addresses]
    return {
        "pushes_per_step_and_worker": pushes / steps / WORKERS,
        "bytes_per_step": sizes,
        "bytes_largest_over_mean": max(sizes) / statistics.mean(sizes),
    }


def measured(servers: int, command: str, rounds: int) -> Dict[str, Any]:
    """Everything about one number of servers."""
    blocks = assigned(command, resnet50_blocks(), servers)
    addresses = [f"127.0.0.{10 + index}" for index in range(servers)]
    row: Dict[str, Any] = {"servers": servers}
    for name, layout in (("stock", None), ("assigned", blocks)):
        row[name] = counted(addresses, layout)
    if rounds:
        times: Dict[str, List[float]] = {"stock": [], "assigned": []}
        with Group(addresses, None, False) as stock, Group(addresses, blocks, False) as ours:
            for group in (stock, ours):
                group.step()
            for number in range(rounds):
                pair = [("stock", stock), ("assigned", ours)]
                for name, group in pair if number % 2 else reversed(pair):
                    times[name].append(group.step())
        for name, seconds in times.items():
            row[name]["step_s"] = statistics.median(seconds)
            row[name]["step_s_all"] = seconds
        row["faster"] = row["stock"]["step_s"] / row["assigned"]["step_s"]
    return row


def shape(servers: int, mbit: int) -> None:
    """Limit what comes in at each server's address, in a network namespace of our own."""
    def run(line: str) -> None:
        subprocess.run(line.split(), check=True)

    run("ip link set lo up")
    run("tc qdisc add dev lo root handle 1: htb default 1")
    run("tc class add dev lo parent 1: classid 1:1 htb rate 100gbit quantum 65536")
    for index in range(servers):
        number = f"1:{16 + index:x}"
        # The burst holds a few of the loopback's packets, which are as long as 64 KiB.
        run(
            f"tc class add dev lo parent 1: classid {number} htb rate {mbit}mbit "
            "burst 256k cburst 256k quantum 65536"
        )
        run(
            "tc filter add dev lo parent 1: protocol ip u32 "
            f"match ip dst 127.0.0.{10 + index}/32 flowid {number}"
        )


def plot(rows: List[Dict[str, Any]], mbit: int) -> str:
    """Median step times by number of servers, as SVG."""
    width, height, left, bottom = 640, 380, 60, 330
    top_s = max(row[name]["step_s"] for row in rows for name in ("stock", "assigned"))
    slot = (width - left - 20) / len(rows)
    limits = f", each server's ingress {mbit} Mbit/s" if mbit else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="20">Push and pull of ResNet-50, {WORKERS} workers{limits}</text>',
        f'<text x="{left}" y="38" fill="#999">&#9632; MXNet\'s rule</text>',
        f'<text x="{left + 110}" y="38" fill="#1f6fb2">&#9632; assigned</text>',
        f'<text x="{left + 200}" y="38">above: times as fast</text>',
        f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">servers</text>',
        f'<text x="14" y="{bottom - 120}" transform="rotate(-90 14 {bottom - 120})">'
        "seconds a step (median)</text>",
    ]
    scale = (bottom - 80) / top_s
    for tick in range(5):
        y = bottom - tick * (bottom - 80) / 4
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">'
                     f"{tick * top_s / 4:.2f}</text>")
    for number, row in enumerate(rows):
        x, bar = left + slot * (number + 0.15), slot * 0.35
        for offset, (name, colour) in enumerate((("stock", "#999"), ("assigned", "#1f6fb2"))):
            tall = row[name]["step_s"] * scale
            parts.append(f'<rect x="{x + offset * bar:.1f}" y="{bottom - tall:.1f}" '
                         f'width="{bar:.1f}" height="{tall:.1f}" fill="{colour}"/>')
        high = bottom - max(row[n]["step_s"] for n in ("stock", "assigned")) * scale
        middle = x + bar
        parts.append(f'<text x="{middle:.1f}" y="{high - 5:.1f}" text-anchor="middle">'
                     f'{row["faster"]:.2f}</text>')
        parts.append(f'<text x="{middle:.1f}" y="{bottom + 16}" text-anchor="middle">'
                     f'{row["servers"]}</text>')
    return "\n".join(parts + ["</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--optimus", required=True, help="path of the command optimus")
    parser.add_argument("--servers", type=int, nargs="+", default=list(range(4, 13)))
    parser.add_argument("--rounds", type=int, default=7, help="timed steps with each layout")
    parser.add_argument("--shape-mbit", type=int, default=0, help="ingress of each server")
    parser.add_argument("--results", help="file to add the rows to; later ones replace")
    parser.add_argument("--plot", help="SVG file to draw all rows of the results into")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shape_mbit and not options.inside:
        command = ["unshare", "--net", sys.executable, *sys.argv, "--inside"]
        os.execvp(command[0], command)
    if options.inside:
        shape(max(options.servers), options.shape_mbit)
    rows: Dict[int, Dict[str, Any]] = {}
    if options.results and os.path.exists(options.results):
        with open(options.results, encoding="utf-8") as file:
            rows = {row["servers"]: row for row in json.load(file)["rows"]}
    for servers in options.servers:
        row = rows[servers] = measured(servers, options.optimus, options.rounds)
        print(
            f"p = {servers}: {row.get('faster', float('nan')):.2f} times as fast", file=sys.stderr
        )
    document = {
        "workers": WORKERS, "shape_mbit": options.shape_mbit,
        "rows": [rows[servers] for servers in sorted(rows)],
    }
    if options.results:
        with open(options.results, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
    if options.plot:
        with open(options.plot, "w", encoding="utf-8") as file:
            file.write(plot(document["rows"], options.shape_mbit))
    print(json.dumps(document))


if __name__ == "__main__":
    main()
