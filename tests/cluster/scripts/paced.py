"""A tiny model whose steps take as long as they are told to, on any number of cores.

The time of a step is slept in short pieces, so that many workers can share two cores;
a process that is stopped for a part of the time is slowed by just that part.
"""

import argparse
import time

import optimus

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--step-ms", type=float, default=150.0)
parser.add_argument("--samples", type=int, default=100_000)
options = parser.parse_args()
job = optimus.init(global_batch=64, epochs_max=1, seed=1)

import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

PIECE_S = 0.002

net = gluon.nn.Dense(1, in_units=8)
net.initialize(mx.init.Xavier())
loss_of = gluon.loss.L2Loss()
trainer = job.trainer(net, "sgd", {"learning_rate": 0.01})
inputs = np.random.RandomState(1).normal(size=(options.samples, 8)).astype(np.float32)
targets = inputs.sum(axis=1, keepdims=True)

for batch in job.batches(options.samples):
    x, y = batch.take(inputs, targets)
    for _ in range(round(options.step_ms / 1000 / PIECE_S)):
        time.sleep(PIECE_S)
    with autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step()
    job.record(loss)
job.finish()
