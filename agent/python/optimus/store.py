"""The key-value store of a worker: MXNet's own, with five things added.

It gives a restored job its parameters when the store is initialised; it sets the
optimizer once for all, with the right gradient scale; it changes the learning rate on
the servers; it puts each block of parameters on the server that the master assigned to
it; and it knows when a step's gradients were computed and when its pulls were done,
which tells a slow worker from one that waits for a slow worker.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import mxnet as mx
import numpy
from mxnet.base import _LIB, KVStoreHandle, c_str, check_call

from . import commands, layout
from .assigned import AssignedKVStore, Key
from .checkpoint import PARAMETERS, CheckpointUnfit, Manifest
from .packing import open_arrays

# From the elements of each block to the parts (server, elements) of each.
Assign = Callable[[List[int]], Sequence[Sequence[Tuple[int, int]]]]


class Store(AssignedKVStore):
    """Can be handed to ``gluon.Trainer`` and ``Module`` as it is."""

    def __init__(
        self, mode: str, gradient_scale: float, resume: Optional[Manifest], servers: int,
        assign: Optional[Assign] = None,
    ) -> None:
        """Returns once all processes of the generation have met.

        ``gradient_scale``: what a pushed gradient sum is multiplied by on the servers.
        ``assign``: answers on which of the ``servers`` the blocks are to lie; without it
        they lie by MXNet's own rule.
        """
        if assign is not None:
            # Read when the store is made: no array is to be cut but by the assignment.
            os.environ[layout.BIGARRAY_BOUND_VARIABLE] = str(layout.BIGARRAY_BOUND_MAX)
        # Hidden from the import, where it would matter; read now, when ps-lite starts.
        os.environ["DMLC_ROLE"] = "worker"
        handle = KVStoreHandle()
        check_call(_LIB.MXKVStoreCreate(c_str(f"dist_{mode}"), ctypes.byref(handle)))
        super().__init__(handle, servers, waits=assign is not None)
        mx.profiler.set_kvstore_handle(handle)
        self.gradient_scale = gradient_scale
        self.dropping = False
        self.optimizer: Any = None
        self._mode = mode
        self._resume = resume
        self._bound = layout.bigarray_bound(os.environ)
        self._assign = assign
        self._learning_rate: Optional[float] = None
        self._shapes: Dict[Key, tuple] = {}
        self._local: Dict[Key, Any] = {}
        self._trained: Set[Key] = set()
        self._computed: Optional[float] = None
        self._pulled: List[Any] = []
        self._waited_s = 0.0
        self._restored: Dict[Key, numpy.ndarray] = {}
        if resume is not None and self.rank == 0:
            self._restored = _read_parameters(resume)

    def __del__(self) -> None:
        # The stock destructor waits at a barrier for workers that may be gone.
        pass

    # -- initialisation ---------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        keys, values = _listed(key, value)
        super().init(keys, [self._first_value(*pair) for pair in zip(keys, values)])

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        keys, values = _listed(key, value)
        _, outs = _listed(key, out)
        firsts = [self._first_value(*pair) for pair in zip(keys, values)]
        for name, target in zip(keys, outs):
            self._local[name] = _arrays(target)[0]
        if self._resume is None or self.rank != 0 or self.waits or self.assigned_layout():
            super().broadcast(keys, firsts, outs, priority)
            return
        # It has the values already: the others need the servers to send them theirs.
        super().init(keys, firsts)
        for first, target in zip(firsts, outs):
            for array in _arrays(target):
                first.copyto(array)

    def _first_value(self, key: Key, value: Any) -> Any:
        """What the store starts with: the restored value if there is one."""
        value = _arrays(value)[0]
        if value.stype != "default":
            raise ValueError(f"parameter {key!r} is sparse: only dense ones can be checkpointed")
        self._shapes[key] = value.shape
        if self.rank != 0:
            return value  # only rank 0's values are used
        if self._resume is None:
            # A copy by way of numpy: an array that has been through a convolution may
            # lie in an MKLDNN layout, on which the store's initialisation fails.
            return mx.nd.array(value.asnumpy(), dtype=value.dtype)
        restored = self._restored.pop(key, None)
        if restored is None or restored.shape != value.shape:
            found = "is not in it" if restored is None else f"has shape {restored.shape} in it"
            raise CheckpointUnfit(
                f"{PARAMETERS} does not fit the model: parameter {key!r} of shape "
                f"{value.shape} {found}; was the script changed?"
            )
        return mx.nd.array(restored, dtype=restored.dtype)

    def block_sizes(self) -> List[int]:
        """Elements of each block that is trained, in the order of initialisation."""
        return [size for key, size in self._sizes() if key not in self.untrained]

    def _sizes(self) -> List[Tuple[Key, int]]:
        return [(key, int(numpy.prod(shape))) for key, shape in self._shapes.items()]

    def open(self) -> None:
        """Place and initialise the blocks of a store that waits for their assignment.

        Comes with the first push or pull, and before the training loop. What a script
        initialises afterwards is placed by a rule that balances nothing. All workers
        must get here at the same point. Raises LayoutError.
        """
        if self._assign is None or not self.waits:
            return
        self.place(self._assign(self.waiting_sizes()))
        if self.optimizer is not None:
            self._send_optimizer(first=True)
        self.initialise()

    # -- optimizer --------------------------------------------------------------------

    def set_optimizer(self, optimizer: Any) -> None:
        """Set the servers' optimizer, with their states from the checkpoint if resuming.

        All workers must call it; only rank 0 speaks to the servers, since each message
        of the kind would replace the optimizer anew.
        """
        optimizer.rescale_grad = self.gradient_scale
        if optimizer.param_dict:
            # Gluon's per-parameter multipliers are not pickled; these are, and mean the same.
            optimizer.set_lr_mult({key: p.lr_mult for key, p in optimizer.param_dict.items()})
            optimizer.set_wd_mult({key: p.wd_mult for key, p in optimizer.param_dict.items()})
        first, self.optimizer = self.optimizer is None, optimizer
        if first:
            self._restore_learning_rate()
        if not self.waits:  # else its multipliers do not know the blocks' keys yet
            self._send_optimizer(first)

    def _send_optimizer(self, first: bool) -> None:
        if self.rank == 0:
            super().set_optimizer(self.optimizer)
            if first and self._resume is not None:
                self._command(
                    commands.LOAD, folder=self._resume.folder, layout=self._layout().to_json()
                )
        if first:
            # Nobody may push before the states are there.
            self._barrier()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the learning rate on the servers, from the next update on.

        Synchronous: all workers call it between the same two steps. Exact, because an
        update needs rank 0's push, and rank 0 pushes only after this has been obeyed.
        Raises UserWarning when the optimizer follows a schedule of its own.
        """
        if self.optimizer is None:
            raise RuntimeError("no optimizer was set on the store yet")
        learning_rate = float(learning_rate)
        self.optimizer.set_learning_rate(learning_rate)
        self._learning_rate = learning_rate
        if self.rank == 0 and not self.waits:
            self._command(commands.LEARNING_RATE, value=learning_rate)

    def _restore_learning_rate(self) -> None:
        # Only a rate that was set in mid-training: otherwise the script's own rules.
        if self._resume is not None:
            rate = self._resume.document["optimizer"].get("learning_rate_set")
            if rate is not None:
                self.optimizer.set_learning_rate(rate)
                self._learning_rate = rate

    # -- training ---------------------------------------------------------------------

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        self.open()
        keys, values = _listed(key, value)
        super().push(keys, self._note_push(keys, values), priority)

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        self.open()
        keys, outs = _listed(key, out)
        self._pulled += [array for target in outs for array in _arrays(target)]
        super().pull(keys, outs, priority, ignore_sparse)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        self.open()
        keys, values = _listed(key, value)
        outs = values if out is None else _listed(key, out)[1]
        self._pulled += [array for target in outs for array in _arrays(target)]
        super().pushpull(keys, self._note_push(keys, values), outs, priority)

    def _note_push(self, keys: List[Key], values: List[Any]) -> List[Any]:
        self._trained.update(keys)
        for value in values:
            for array in _arrays(value):
                # Tells when our own computing ends. It must come before the push: the
                # stock store uses the gradient's memory for the pull that follows.
                array.wait_to_read()
        self._computed = time.monotonic()
        if self.dropping:
            # This worker has no share of the batch, but the servers wait for its push.
            return [[mx.nd.zeros_like(array) for array in _arrays(value)] for value in values]
        return values

    def settle(self) -> None:
        """Wait until the pulls so far are done, and count that time as waited.

        Only what passes after this worker's own gradients are computed counts.
        """
        pulled, self._pulled = self._pulled, []
        for array in pulled:
            array.wait_to_read()
        if pulled and self._computed is not None:
            self._waited_s += time.monotonic() - self._computed
        self._computed = None

    def take_waited_s(self) -> float:
        """Seconds waited for pushes and pulls since the last call."""
        self.settle()
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    # -- checkpoint -------------------------------------------------------------------

    def pull_parameters(self) -> Dict[Key, Any]:
        """The present value of every key, on its way: the servers' where they train it.

        A key that was never pushed (the running means of a normalisation layer) lives
        in the worker alone.
        """
        if self.optimizer is None:
            raise RuntimeError(
                "no optimizer was set on the store: its state would be missing in a checkpoint"
            )
        keys = list(self._shapes)
        arrays = {}
        for key in keys:
            if key in self._local and key not in self._trained:
                arrays[key] = self._local[key]
            else:
                local = self._local.get(key)
                dtype = numpy.float32 if local is None else local.dtype
                arrays[key] = mx.nd.empty(self._shapes[key], dtype=dtype)
                super().pull([key], [arrays[key]])
        return arrays

    def save_states(self, folder: str, checkpoint: int) -> None:
        """Let each server write its states; returns when all have done or failed."""
        self._command(
            commands.SAVE, folder=folder, checkpoint=checkpoint, layout=self._layout().to_json()
        )

    def _layout(self) -> layout.Layout:
        assigned = self.assigned_layout()
        if assigned is not None:
            return assigned
        # A string key has the number, on the servers, of its turn at initialisation.
        sizes = {
            key if isinstance(key, int) else number: size
            for number, (key, size) in enumerate(self._sizes())
        }
        return layout.StockLayout(self._servers, self._bound, sizes)

    def optimizer_document(self) -> Dict[str, Any]:
        """What a manifest says of the optimizer."""
        return {
            "name": type(self.optimizer).__name__,
            "learning_rate_set": self._learning_rate,
            "gradient_scale": self.gradient_scale,
            "bigarray_bound": self._bound,
        }

    def _command(self, command: str, **fields: Any) -> None:
        self._send_command_to_servers(commands.HEAD_CONTROLLER, commands.encode(command, **fields))


def _read_parameters(manifest: Manifest) -> Dict[Key, numpy.ndarray]:
    arrays = open_arrays(
        manifest.folder, manifest.part(PARAMETERS), manifest.document.get("places")
    )
    table = manifest.document["parameters"]
    return {entry["key"]: arrays[entry["array"]] for entry in table if "kept" not in entry}


def _listed(key: Any, value: Any) -> Any:
    """Keys and values as two lists of one length."""
    if isinstance(key, (list, tuple)):
        return list(key), list(value)
    return [key], [value]


def _arrays(value: Any) -> List[Any]:
    """A key's arrays, one for each device."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
