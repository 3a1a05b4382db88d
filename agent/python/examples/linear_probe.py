"""A tiny synchronous model whose every step can be compared between two runs (Gluon).

No dropout and no batch normalisation, and the samples of a step are a function of the
step alone: a run that was stopped and resumed with other numbers of servers and
workers must give the losses of a run that was not. With --print-steps every worker
prints, after each step, the loss over the *whole* data set, which depends on nothing
but the parameters and so is the same on all of them.
"""

import argparse
import time

import optimus


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--global-batch", type=int, default=60, help="when run alone")
    parser.add_argument("--epochs", type=int, default=10, help="when run alone")
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--learning-rate", type=float, default=None)
    parser.add_argument("--print-steps", action="store_true")
    parser.add_argument("--print-samples", action="store_true", help="of each step, as it begins")
    parser.add_argument("--step-ms", type=float, default=0.0, help="make each step take so long")
    parser.add_argument("--rate-at", type=int, default=None, help="multiply the rate by 0.3 there")
    parser.add_argument("--raise-at", type=int, default=None, help="fail in this step")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


options = arguments()
job = optimus.init(
    global_batch=options.global_batch, epochs_max=options.epochs, seed=options.seed
)

import mxnet as mx
from mxnet import autograd, gluon

import synthetic

SETTINGS = {
    "sgd": {"learning_rate": options.learning_rate or 0.05, "momentum": 0.9},
    "adam": {"learning_rate": options.learning_rate or 0.003},
}

mx.random.seed(options.seed)
inputs, targets = synthetic.regression(options.samples, options.features, options.seed, noise=0.1)
net = gluon.nn.HybridSequential()
net.add(
    gluon.nn.Dense(options.hidden, activation="tanh", in_units=options.features),
    gluon.nn.Dense(1, in_units=options.hidden),
)
net.initialize(mx.init.Xavier())
loss_of = gluon.loss.L2Loss()
trainer = job.trainer(net, options.optimizer, SETTINGS[options.optimizer])
all_inputs, all_targets = mx.nd.array(inputs), mx.nd.array(targets)

for batch in job.batches(options.samples):
    if options.print_samples and batch.samples:
        print(f"samples {batch.epoch} {','.join(map(str, batch.indices))}")
    x, y = batch.take(inputs, targets)
    with autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step()
    job.record(loss)
    if options.step_ms:
        time.sleep(options.step_ms / 1000)
    if options.print_steps:
        whole = loss_of(net(all_inputs), all_targets).asnumpy().mean(dtype="float64")
        print(f"step {batch.step} loss {whole:.9g}")
    if batch.step == options.rate_at:
        trainer.set_learning_rate(trainer.learning_rate * 0.3)
    if batch.step == options.raise_at:
        raise ValueError(f"failing in step {batch.step} as asked")
job.finish()
