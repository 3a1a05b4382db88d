"""Asynchronous training of a small dense net on drawn digits (Gluon).

Nothing in the script says that it is asynchronous: that is the job's setting. Each
worker goes through its own share of an epoch at its own speed.

What a plain script would not have is marked with (O).
"""

import argparse

import optimus  # (O) before mxnet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--worker-batch", type=int, default=64, help="when run alone")
    parser.add_argument("--epochs", type=int, default=30, help="when run alone")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--noise", type=float, default=0.4, help="standard deviation of a pixel")
    parser.add_argument("--seed", type=int, default=2)
    return parser.parse_args()


options = arguments()
job = optimus.init(  # (O) servers and the scheduler stay in here
    worker_batch=options.worker_batch, epochs_max=options.epochs, seed=options.seed
)

import mxnet as mx
from mxnet import autograd, gluon

import synthetic

mx.random.seed(options.seed)
data = synthetic.Digits(options.samples, options.seed, noise=options.noise)
net = gluon.nn.HybridSequential()
net.add(
    gluon.nn.Dense(options.hidden, activation="relu"),
    gluon.nn.Dense(options.hidden, activation="relu"),
    gluon.nn.Dense(10),
)
net.initialize(mx.init.MSRAPrelu())
net.hybridize(static_alloc=True)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = job.trainer(  # (O)
    net, "sgd", {"learning_rate": options.learning_rate}, input_shape=(1,) + data.images.shape[1:]
)

for epoch in job.epochs(options.samples):  # (O)
    for batch in epoch:
        x = mx.nd.array(data.noisy(batch.indices, epoch.number))  # (O) which samples
        y = mx.nd.array(data.labels[batch.indices])
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step()
        job.record(loss)  # (O)
    print(f"epoch {epoch.number} loss {epoch.loss:.4f}")
job.finish()  # (O)
