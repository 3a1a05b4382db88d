"""A model of 25 million parameters, synchronously trained by momentum: for measuring pauses.

One hidden layer of 5,000 units between wide inputs and outputs; data that cost nothing.
"""

import argparse

import optimus

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--global-batch", type=int, default=8, help="when run alone")
parser.add_argument("--epochs", type=int, default=1, help="when run alone")
parser.add_argument("--units", type=int, default=5000, help="of the hidden layer")
parser.add_argument("--seed", type=int, default=1)
options = parser.parse_args()
job = optimus.init(
    global_batch=options.global_batch, epochs_max=options.epochs, seed=options.seed
)

import mxnet as mx
from mxnet import autograd, gluon

WIDTH = 2500

mx.random.seed(options.seed)
net = gluon.nn.HybridSequential()
net.add(
    gluon.nn.Dense(options.units, in_units=WIDTH, activation="relu"),
    gluon.nn.Dense(WIDTH, in_units=options.units),
)
net.initialize(mx.init.Xavier())
net.hybridize(static_alloc=True)
loss_of = gluon.loss.L2Loss()
trainer = job.trainer(net, "sgd", {"learning_rate": 0.01, "momentum": 0.9})
patterns = mx.nd.random.uniform(shape=(64, WIDTH))

for epoch in job.epochs(options.samples):
    for batch in epoch:
        x = patterns.take(mx.nd.array(batch.indices % 64))
        with autograd.record():
            loss = loss_of(net(x), x)
        loss.backward()
        trainer.step()
        job.record(loss)
    print(f"epoch {epoch.number} loss {epoch.loss:.6f}")
job.finish()
