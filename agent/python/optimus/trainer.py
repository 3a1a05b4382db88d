"""Gluon's Trainer on Optimus's store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence

import mxnet as mx

if TYPE_CHECKING:
    from .store import Store


class Trainer(mx.gluon.Trainer):
    """``mxnet.gluon.Trainer`` that is right for any number of workers.

    The store is initialised when the trainer is made, not in the first step: all
    workers then begin with the same (or the restored) parameters, and no forward pass
    has left a weight in a layout that the store refuses.
    """

    def __init__(
        self, store: Optional["Store"], samples_per_update: float, params: Any,
        optimizer: Any, optimizer_params: Optional[dict], **options: Any,
    ) -> None:
        """``store`` is None when the script runs alone."""
        if store is not None and options.pop("update_on_kvstore", True) is not True:
            raise ValueError("update_on_kvstore must be on: checkpoints take the servers' states")
        self._samples_per_update = samples_per_update
        self._store = store
        super().__init__(
            params, optimizer, optimizer_params, kvstore=store,
            update_on_kvstore=None if store is None else True, **options,
        )
        if store is not None:
            self._start(store)

    def _start(self, store: "Store") -> None:
        unknown = [p.name for p in self._params if p._deferred_init]
        if unknown:
            raise ValueError(
                f"the shape of parameter {unknown[0]} is not known yet: give in_units and "
                "in_channels to the layers, or input_shape to job.trainer()"
            )
        # The very expression by which step() checks that the scale has not changed.
        store.gradient_scale = self._scale / self._samples_per_update
        indices = enumerate(self._params)
        store.untrained.update(index for index, p in indices if p.grad_req == "null")
        self._init_kvstore()
        self._init_params()
        store.open()

    def _init_params(self) -> None:
        # The stock method passes one barrier for each parameter; a list passes one.
        waiting: List[Any] = self._params_to_init
        self._params_to_init: List[Any] = []
        if self._kvstore and waiting:
            self._kvstore.broadcast(
                [self._param2idx[parameter.name] for parameter in waiting],
                [parameter.list_data()[0] for parameter in waiting],
                [parameter.list_data() for parameter in waiting],
            )

    def _allreduce_grads(self) -> None:
        if self._store is None:
            super()._allreduce_grads()
            return
        # The store waits for each gradient before it pushes it. The backward pass makes
        # them from the last layer to the first, so in this order the pushes go out while
        # it still runs; the priorities fetch the first layer's weights first, for the
        # next forward pass, as in the stock trainer.
        for index in reversed(range(len(self._params))):
            parameter = self._params[index]
            if parameter.grad_req != "null":
                self._store.pushpull(
                    index, parameter.list_grad(), out=parameter.list_data(), priority=-index
                )

    def step(self, batch_size: Optional[int] = None, ignore_stale_grad: bool = False) -> None:
        """Apply the gradients of one step.

        ``batch_size`` is there for existing scripts and not used: the sum of gradients
        is divided by the update's number of samples, which the job knows and whose
        change the servers would not notice. So backward() must start from the losses
        of the samples, not from their mean.
        """
        super().step(self._samples_per_update, ignore_stale_grad)
        if self._store is not None:
            # Here, or a script that looks at its loss next would wait unseen.
            self._store.settle()

    def set_learning_rate(self, lr: float) -> None:
        """Change the learning rate from the next step on, on the servers too."""
        if self._store is None:
            super().set_learning_rate(lr)
        else:
            self._store.set_learning_rate(lr)


def parameters(model: Any, input_shape: Optional[Sequence[int]]) -> Any:
    """The parameters of a block (or what was given, if it is no block), shapes known.

    ``input_shape``: of one batch, such as (1, 3, 32, 32); the batch axis may be any
    number. Shapes are inferred without a forward pass.
    """
    if not isinstance(model, mx.gluon.Block):
        return model
    found = model.collect_params()
    if input_shape is not None and any(p._deferred_init for p in found.values()):
        if not isinstance(model, mx.gluon.HybridBlock):
            raise ValueError(
                "input_shape needs a HybridBlock: give in_units and in_channels instead"
            )
        model.infer_shape(mx.nd.zeros(input_shape))
        for parameter in found.values():
            parameter._finish_deferred_init()
    return found
