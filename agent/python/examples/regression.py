"""Synchronous regression with the Module API and SGD with momentum.

The store goes to ``init_optimizer`` as any other would. What a plain script would not
have is marked with (O).
"""

import argparse

import optimus  # (O) before mxnet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--global-batch", type=int, default=256, help="when run alone")
    parser.add_argument("--epochs", type=int, default=30, help="when run alone")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--noise", type=float, default=0.5, help="of the targets")
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args()


options = arguments()
job = optimus.init(  # (O) servers and the scheduler stay in here
    global_batch=options.global_batch, epochs_max=options.epochs, seed=options.seed
)

import mxnet as mx
import numpy as np

import synthetic


def network(hidden: int) -> mx.sym.Symbol:
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=hidden, name="first")
    layer = mx.sym.Activation(layer, act_type="tanh")
    layer = mx.sym.FullyConnected(layer, num_hidden=1, name="second")
    return mx.sym.LinearRegressionOutput(layer, mx.sym.var("target"), name="output")


mx.random.seed(options.seed)
inputs, targets = synthetic.regression(
    options.samples, options.features, options.seed, options.noise
)
module = mx.mod.Module(network(options.hidden), data_names=["data"], label_names=["target"])
module.bind(
    data_shapes=[("data", (job.batch_size, options.features))],  # (O) this worker's share
    label_shapes=[("target", (job.batch_size, 1))],
)
module.init_params(mx.init.Xavier())
module.init_optimizer(
    kvstore=job.kvstore(),  # (O)
    optimizer="sgd",
    optimizer_params={
        "learning_rate": options.learning_rate,
        "momentum": options.momentum,
        "rescale_grad": job.gradient_scale,  # (O)
    },
)

for epoch in job.epochs(options.samples):  # (O)
    for batch in epoch:
        x, y = batch.take(inputs, targets)  # (O)
        module.forward(mx.io.DataBatch(data=[x], label=[y]), is_train=True)
        module.backward()
        module.update()
        errors = module.get_outputs()[0].asnumpy() - y.asnumpy()
        job.record(np.square(errors).mean())  # (O)
    print(f"epoch {epoch.number} loss {epoch.loss:.4f}")
job.finish()  # (O)
