"""A tiny model with the Module API whose every step can be compared between two runs.

Weight decay is on the weights alone, by their names, and one layer learns more slowly:
both must follow a block wherever it lies. Each worker prints, after each step, the loss
over the whole data set.
"""

import argparse

import optimus

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--samples", type=int, default=1000)
parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
parser.add_argument("--global-batch", type=int, default=64, help="when run alone")
parser.add_argument("--epochs", type=int, default=10, help="when run alone")
options = parser.parse_args()
job = optimus.init(global_batch=options.global_batch, epochs_max=options.epochs, seed=1)

import os
import sys
from typing import Dict

import mxnet as mx
import numpy as np

sys.path.insert(0, os.environ["EXAMPLES"])
import synthetic

FEATURES, HIDDEN = 40, 64
SETTINGS = {
    "sgd": {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.003},
    "adam": {"learning_rate": 0.003, "wd": 0.003},
}


def network() -> mx.sym.Symbol:
    layer = mx.sym.FullyConnected(
        mx.sym.var("data"), weight=mx.sym.var("first_weight", lr_mult=0.5), num_hidden=HIDDEN,
        name="first",
    )
    layer = mx.sym.Activation(layer, act_type="tanh")
    layer = mx.sym.FullyConnected(layer, num_hidden=1, name="second")
    return mx.sym.LinearRegressionOutput(layer, mx.sym.var("target"), name="output")


def whole_loss(parameters: Dict[str, mx.nd.NDArray]) -> float:
    # By hand: a module bound for inference keeps its weights in a layout of its own, and
    # does not see new ones.
    found = {name: array.asnumpy() for name, array in parameters.items()}
    hidden = np.tanh(inputs @ found["first_weight"].T + found["first_bias"])
    errors = hidden @ found["second_weight"].T + found["second_bias"] - targets
    return np.square(errors).mean(dtype="float64") / 2


mx.random.seed(1)
inputs, targets = synthetic.regression(options.samples, FEATURES, 1, noise=0.1)
module = mx.mod.Module(network(), data_names=["data"], label_names=["target"])
module.bind(
    data_shapes=[("data", (job.batch_size, FEATURES))],
    label_shapes=[("target", (job.batch_size, 1))],
)
module.init_params(mx.init.Xavier())
module.init_optimizer(
    kvstore=job.kvstore(), optimizer=options.optimizer,
    optimizer_params=dict(SETTINGS[options.optimizer], rescale_grad=job.gradient_scale),
)

for batch in job.batches(options.samples):
    x, y = batch.take(inputs, targets)
    module.forward(mx.io.DataBatch(data=[x], label=[y]), is_train=True)
    module.backward()
    module.update()
    job.record(np.square(module.get_outputs()[0].asnumpy() - y.asnumpy()).mean())
    print(f"step {batch.step} loss {whole_loss(module.get_params()[0]):.9g}")
job.finish()
