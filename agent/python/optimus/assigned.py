"""MXNet's key-value store whose blocks can lie where they were assigned (section 5.3).

The stock worker sends an array to a server by the array's key, so a block goes where it
should under a key chosen for that; a block that is to lie on several servers goes in
slices, each with a key and a buffer of its own. The script's keys stay what they are.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import mxnet as mx

from . import layout

Key = Union[int, str]


class _Waiting(NamedTuple):
    """A block that was initialised before its assignment was known."""

    key: Key
    value: Any
    out: Any
    priority: int


class _Block:
    """A placed block: its number, its parts, and buffers for its slices."""

    def __init__(self, number: int, parts: Sequence[Tuple[int, int, int]]) -> None:
        self.number = number
        self.keys = [key for key, _, _ in parts]
        self.parts = list(parts)
        self._buffers: Dict[Tuple[int, Any], List[Any]] = {}

    @property
    def cut(self) -> bool:
        return len(self.keys) > 1

    def sliced(self, arrays: List[Any]) -> List[List[Any]]:
        """Copies of each slice, from each device's array."""
        return _turned([self._slices_of(number, array) for number, array in enumerate(arrays)])

    def _slices_of(self, device: int, array: Any) -> List[Any]:
        if array.stype != "default":
            array = array.tostype("default")
        whole, *parts = self._buffers_for(device, array)
        # The whole first: an array that has been through a convolution may lie in an
        # MKLDNN layout, of which no slice can be taken. Copies, since views of one array
        # wait for each other in MXNet's engine.
        array.copyto(whole.reshape(array.shape))
        start = 0
        for part in parts:
            whole[start:start + part.size].copyto(part)
            start += part.size
        return parts

    def receiving(self, arrays: List[Any]) -> List[List[Any]]:
        """Arrays to pull each slice into, for each device's array.

        They are those that were pushed: the engine keeps the order, and the stock store
        receives into what was pushed anyway.
        """
        return _turned([
            self._buffers_for(number, array)[1:] for number, array in enumerate(arrays)
        ])

    def received(self, arrays: List[Any]) -> None:
        """Put what was pulled together into each device's array."""
        for number, array in enumerate(arrays):
            whole, *parts = self._buffers_for(number, array)
            mx.nd.concat(*parts, dim=0, out=whole)
            whole.reshape(array.shape).copyto(array)

    def _buffers_for(self, device: int, array: Any) -> List[Any]:
        """An array for the whole block, flat, and one for each slice."""
        found = self._buffers.get((device, array.dtype))
        if found is None or found[0].context != array.context:
            sizes = [array.size] + [elements for _, _, elements in self.parts]
            found = [mx.nd.empty((n,), ctx=array.context, dtype=array.dtype) for n in sizes]
            self._buffers[(device, array.dtype)] = found
        return found


class AssignedKVStore(mx.kv.KVStore):
    """The stock store until it is told to wait for an assignment.

    While it waits, initialised blocks are only noted. After :meth:`place` all of them
    lie where they were assigned.
    """

    def __init__(self, handle: Any, servers: int, waits: bool) -> None:
        super().__init__(handle)
        self._servers = servers
        self._waiting: Optional[List[_Waiting]] = [] if waits else None
        self._blocks: Dict[Key, _Block] = {}
        # Gives out the keys, once the blocks are placed.
        self._chosen: Optional[layout.Keys] = None
        # Keys that are initialised and never pushed, such as running means: no traffic to
        # balance, so nobody assigns them.
        self.untrained: Set[Key] = set()

    @property
    def waits(self) -> bool:
        """Whether blocks are still to be placed."""
        return self._waiting is not None

    def waiting_sizes(self) -> List[int]:
        """Elements of the blocks that wait to be assigned, in the order of initialisation."""
        waiting = self._waiting or []
        return [entry.value.size for entry in waiting if entry.key not in self.untrained]

    def place(self, blocks: Sequence[Sequence[Tuple[int, int]]]) -> None:
        """Choose the keys for the parts (server, elements) of :meth:`waiting_sizes`' blocks.

        Raises LayoutError. :meth:`initialise` must follow.
        """
        self._chosen = layout.Keys(self._servers)
        assigned = iter(blocks)
        for entry in self._waiting or []:
            if entry.key in self.untrained:
                self._add_whole(entry)
            else:
                self._add(entry.key, self._chosen.of(next(assigned)))

    def _add_whole(self, entry: _Waiting) -> None:
        """Place a block that nobody assigns, in turn."""
        assert self._chosen is not None, "the others are placed"
        server = len(self._blocks) % self._servers
        self._add(entry.key, self._chosen.of([(server, entry.value.size)]))

    def _add(self, key: Key, parts: List[Tuple[int, int, int]]) -> None:
        number = key if isinstance(key, int) else len(self._blocks)
        first = next(iter(self._blocks), key)
        if isinstance(key, int) != isinstance(first, int):
            raise ValueError("integer and string keys cannot be mixed in one store")
        self._blocks[key] = _Block(number, parts)

    def initialise(self) -> None:
        """Initialise the placed blocks, and give those that asked for it their values."""
        entries, self._waiting = self._waiting or [], None
        self._init_all(entries)

    def assigned_layout(self) -> Optional[layout.AssignedLayout]:
        """The layout of the blocks that were placed; None where the stock rule holds."""
        if self._chosen is None:
            return None
        return layout.AssignedLayout({b.number: b.parts for b in self._blocks.values()})

    # -- the stock store's methods ----------------------------------------------------

    def init(self, key: List[Key], value: List[Any]) -> None:
        self._initialise(list(zip(key, value, [None] * len(key))), 0)
        if self._chosen is None and self._waiting is None:
            super().init(key, value)

    def broadcast(self, key: List[Key], value: List[Any], out: List[Any], priority: int = 0) -> None:
        self._initialise(list(zip(key, value, out)), priority)
        if self._chosen is None and self._waiting is None:
            super().broadcast(key, value, out, priority)

    def _initialise(self, found: List[Tuple[Key, Any, Any]], priority: int) -> None:
        entries = [_Waiting(key, value, out, priority) for key, value, out in found]
        if self._waiting is not None:
            self._waiting += entries
        elif self._chosen is not None:
            # Initialised when the others had been placed: the master knows nothing of it.
            for entry in entries:
                self._add_whole(entry)
            self._init_all(entries)

    def _init_all(self, entries: List[_Waiting]) -> None:
        keys: List[int] = []
        values: List[Any] = []
        for entry in entries:
            block = self._blocks[entry.key]
            keys += block.keys
            if not block.cut:
                values.append(entry.value)
                continue
            # Of the others only the shapes are looked at.
            slices = block.sliced if self.rank == 0 else block.receiving
            values += [arrays[0] for arrays in slices([entry.value])]
        if keys:
            super().init(keys, values)
        for entry in entries:
            if entry.out is not None:
                self.pull([entry.key], [entry.out], entry.priority)

    def push(self, key: List[Key], value: List[Any], priority: int = 0) -> None:
        if self._chosen is None:
            super().push(key, value, priority)
        else:
            for name, arrays in zip(key, value):
                block = self._blocks[name]
                super().push(block.keys, self._outgoing(block, arrays), priority)

    def pull(
        self, key: List[Key], out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        if self._chosen is None:
            super().pull(key, out, priority, ignore_sparse)
            return
        for name, arrays in zip(key, out):
            block, arrays = self._blocks[name], _arrays(arrays)
            if block.cut:
                super().pull(block.keys, block.receiving(arrays), priority, ignore_sparse)
                block.received(arrays)
            else:
                super().pull(block.keys, [arrays], priority, ignore_sparse)

    def pushpull(
        self, key: List[Key], value: List[Any], out: Any = None, priority: int = 0
    ) -> None:
        if self._chosen is None:
            super().pushpull(key, value, out, priority)
            return
        for name, arrays, target in zip(key, value, value if out is None else out):
            block, target = self._blocks[name], _arrays(target)
            outgoing = self._outgoing(block, arrays)
            if block.cut:
                super().pushpull(block.keys, outgoing, block.receiving(target), priority)
                block.received(target)
            else:
                super().pushpull(block.keys, outgoing, [target], priority)

    def _outgoing(self, block: _Block, arrays: Any) -> List[List[Any]]:
        return block.sliced(_arrays(arrays)) if block.cut else [_arrays(arrays)]

    def set_optimizer(self, optimizer: Any) -> None:
        super().set_optimizer(optimizer if self._chosen is None else self._mapped(optimizer))

    def _mapped(self, optimizer: Any) -> Any:
        """The optimizer with all that it knows of blocks under the keys of their parts."""
        mapped = copy.copy(optimizer)
        for name in ("lr_mult", "wd_mult", "idx2name"):
            known = getattr(optimizer, name)
            table = {key: value for key, value in known.items() if not isinstance(key, int)}
            for block in self._blocks.values():
                if block.number in known:
                    table.update((key, known[block.number]) for key in block.keys)
            setattr(mapped, name, table)
        return mapped


def _arrays(value: Any) -> List[Any]:
    """A key's arrays, one for each device."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _turned(by_device: List[List[Any]]) -> List[List[Any]]:
    """For each slice its arrays, one for each device."""
    return [list(arrays) for arrays in zip(*by_device)]
