"""Synchronous training of a convolutional net on drawn digits (Gluon).

What a plain script would not have is marked with (O).
"""

import argparse

import optimus  # (O) before mxnet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=6144)
    parser.add_argument("--global-batch", type=int, default=256, help="when run alone")
    parser.add_argument("--epochs", type=int, default=30, help="when run alone")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--noise", type=float, default=0.5, help="standard deviation of a pixel")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


options = arguments()
job = optimus.init(  # (O) servers and the scheduler stay in here
    global_batch=options.global_batch, epochs_max=options.epochs, seed=options.seed
)

import mxnet as mx
from mxnet import autograd, gluon

import synthetic


def network(width: int) -> gluon.nn.HybridBlock:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(width, kernel_size=3, padding=1, activation="relu"),
        gluon.nn.Conv2D(width, kernel_size=3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(),
        gluon.nn.Conv2D(2 * width, kernel_size=3, padding=1, activation="relu"),
        gluon.nn.Conv2D(2 * width, kernel_size=3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(),
        gluon.nn.Dense(64, activation="relu"),
        gluon.nn.Dense(10),
    )
    return net


mx.random.seed(options.seed)
data = synthetic.Digits(options.samples, options.seed, noise=options.noise)
net = network(options.width)
net.initialize(mx.init.MSRAPrelu())
net.hybridize(static_alloc=True)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = job.trainer(  # (O)
    net, "adam", {"learning_rate": options.learning_rate},
    input_shape=(1,) + data.images.shape[1:],
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
