"""The parameter server process: the stock one, with a controller that can do more.

It writes its optimizer's states when told to, loads those of a checkpoint, takes a
new learning rate in mid-training, and dies loudly instead of answering no more.
"""

from __future__ import annotations

import os
import pickle
import threading
from typing import Any, Callable, Dict, Optional

import mxnet as mx
from mxnet.kvstore.kvstore_server import KVStoreServer

from . import commands, gateway, layout, process, states
from .checkpoint import CheckpointDamaged, Manifest, server_states, server_table
from .environment import Settings
from .report import Reporter


class Server(KVStoreServer):
    """Serves one generation of a job."""

    def __init__(self, kvstore: Any, settings: Settings, reporter: Reporter) -> None:
        super().__init__(kvstore)
        self._settings = settings
        self._reporter = reporter
        self._rank = -1
        self._initial_numbers: Dict[str, float] = {}
        self._loading: Optional[threading.Thread] = None

    def _controller(self) -> Callable[[int, bytes, Any], None]:
        def controller(head: int, body: bytes, _: Any) -> None:
            # An exception that leaves a C callback is printed and forgotten; the
            # workers would then train on with a server that did not obey.
            self._or_fail(lambda: self._obey(head, body))

        return controller

    def _or_fail(self, work: Callable[[], None]) -> None:
        try:
            work()
        except CheckpointDamaged as error:
            process.fail(self._reporter, process.describe(error), process.EXIT_DAMAGED)
        except BaseException as error:  # pylint: disable=broad-except
            process.fail(self._reporter, process.describe(error))

    def _obey(self, head: int, body: bytes) -> None:
        if self._rank < 0:
            # Not known before the servers have met, which is before the first command.
            self._rank = self.kvstore.rank
            self._reporter.set_rank(self._rank)
        if head != commands.HEAD_CONTROLLER:
            return
        fields = commands.decode(body)
        if fields is None:
            # MXNet's own wire format; comes from our job's worker, never from a disk.
            self._set_optimizer(pickle.loads(body))
        elif fields["command"] == commands.LEARNING_RATE:
            self._updater.optimizer.set_learning_rate(fields["value"])
        elif fields["command"] == commands.LOAD:
            self._load(fields)
        elif fields["command"] == commands.SAVE:
            self._save(fields)
        else:
            raise ValueError(f"unknown command {fields['command']!r}")

    @property
    def _updater(self) -> Any:
        if self.kvstore._updater is None:
            raise RuntimeError("no optimizer was set on the servers before the command")
        self._loaded()
        return self.kvstore._updater

    def _load(self, fields: Dict[str, Any]) -> None:
        """Begin to load the states of a checkpoint, while the parameters still come in.

        Whatever uses the updater waits for the end of it, the first update above all.
        """
        updater, manifest = self._updater, Manifest(fields["folder"])
        placed = layout.from_json(fields["layout"], self._settings.servers)
        self._loading = threading.Thread(
            target=self._or_fail, daemon=True, name="optimus-load",
            args=[lambda: states.load(updater, manifest, self._rank, placed)],
        )
        self._loading.start()

    def _loaded(self) -> None:
        if self._loading is not None:
            self._loading.join()
            self._loading = None

    def _set_optimizer(self, optimizer: Any) -> None:
        updater = self.kvstore._updater
        if updater is not None:
            # A script that sets its optimizer again wants other settings, not to lose
            # the momentum, which the stock server would drop.
            states.carry_progress(updater.optimizer, optimizer)
            updater.optimizer = optimizer
            return
        self.kvstore.set_optimizer(optimizer)
        self._initial_numbers = states.numbers(optimizer)
        updater = self.kvstore._updater

        def guarded(key: int, gradient: Any, weight: Any) -> None:
            try:
                self._loaded()
                updater(key, gradient, weight)
            except BaseException as error:  # pylint: disable=broad-except
                process.fail(self._reporter, f"update of key {key}: {process.describe(error)}")

        self.kvstore._set_updater(guarded)
        self.kvstore._updater = updater

    def _save(self, fields: Dict[str, Any]) -> None:
        try:
            target = gateway.target(fields["folder"], fields["checkpoint"])
            states.save(
                self._updater, self._initial_numbers, target.folder, self._rank,
                self._settings.servers,
                layout.from_json(fields["layout"], self._settings.servers),
            )
            # The table last: its presence says that the part is complete. Nobody is kept
            # waiting here, or the workers' pushes were too.
            target.hand_over([server_states(self._rank), server_table(self._rank)])
        except Exception as error:  # pylint: disable=broad-except
            # Training goes on without this checkpoint. Rank 0 sees that our file is
            # missing; only we know why.
            self._reporter.send(
                "failed", checkpoint=fields["checkpoint"], error=process.describe(error)[:500]
            )


def run(settings: Settings, reporter: Reporter) -> None:
    """Serve until the workers are done. MXNet must have been imported without a role."""
    # The import runs the stock server at once when it finds this variable.
    os.environ["DMLC_ROLE"] = "server"
    Server(mx.kv.create("dist"), settings, reporter).run()
