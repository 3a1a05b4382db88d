"""Uses the store by hand: its own keys, multipliers by name, changes on the way.

Argument: ``numbers`` or ``words``, the kind of its keys. Prints the values after each step.
"""

import sys

import optimus

job = optimus.init(global_batch=4, epochs_max=3)

import mxnet as mx

KEYS = {"numbers": [7, 3, 40], "words": ["b", "a", "c"]}[sys.argv[1]]
SHAPES = [(40, 30), (5,), (60,)]
LATE, LATE_SHAPE = {"numbers": 41, "words": "d"}[sys.argv[1]], (70,)


def values(shapes: list, factor: float) -> list:
    return [mx.nd.arange(mx.nd.zeros(s).size).reshape(s) * factor / 100 for s in shapes]


def optimizer(decay: float) -> mx.optimizer.Optimizer:
    # A string key is known to the servers by its turn.
    numbers = KEYS if sys.argv[1] == "numbers" else range(len(KEYS))
    made = mx.optimizer.SGD(
        learning_rate=0.1, momentum=0.9, wd=decay,
        param_idx2name=dict(zip(numbers, ["one_weight", "two_bias", "three_weight"])),
    )
    made.set_lr_mult({"one_weight": 0.5})
    made.set_wd_mult({"three_weight": 2.0})
    return made


store = job.kvstore()
assert store is not None
store.init(KEYS[0], values(SHAPES, 1.0)[0])
store.init(KEYS[1:], values(SHAPES, 1.0)[1:])
store.set_optimizer(optimizer(0.1))
keys, shapes = list(KEYS), list(SHAPES)
for batch in job.batches(16):
    out = [mx.nd.zeros(shape) for shape in shapes]
    store.push(keys, values(shapes, batch.step / 10))
    store.pull(keys, out)
    job.record(0.0)
    print("step", batch.step, *(f"{a.asnumpy().sum(dtype='float64'):.9g}" for a in out))
    if batch.step == 3:
        job.set_learning_rate(0.02)
    if batch.step == 6:
        store.set_optimizer(optimizer(0.2))
    if batch.step == 9:
        store.init(LATE, values([LATE_SHAPE], 1.0)[0])
        keys, shapes = keys + [LATE], shapes + [LATE_SHAPE]
job.finish()
