"""A net with running means, which no server knows, and an array that the script keeps."""

import optimus

job = optimus.init(worker_batch=16, epochs_max=100)

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

mx.random.seed(1)
random = np.random.RandomState(1)
inputs = random.normal(1.0, 2.0, (320, 3, 8, 8)).astype(np.float32)
targets = inputs.mean(axis=(1, 2, 3)).reshape(-1, 1)
net = gluon.nn.HybridSequential()
net.add(
    gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"), gluon.nn.Dense(1)
)
net.initialize()
net.hybridize()
trainer = job.trainer(net, "nadam", {"learning_rate": 0.01}, input_shape=(1, 3, 8, 8))
kept = np.zeros(2, np.float32)
job.keep("mine", get=lambda: {"kept": kept}, put=lambda arrays: kept.__iadd__(arrays["kept"]))


def show(step: int) -> None:
    means = next(p for name, p in net.collect_params().items() if name.endswith("running_mean"))
    print("state", step, means.data().asnumpy().tolist(), kept.tolist())


restored = bool(kept.any())
for batch in job.batches(len(inputs)):
    if restored:
        show(batch.step - 1)
        restored = False
    x, y = batch.take(inputs, targets)
    with autograd.record():
        loss = gluon.loss.L2Loss()(net(x), y)
    loss.backward()
    trainer.step()
    job.record(loss)
    kept += 1
    show(batch.step)
job.finish()
