"""Training on a data set in RecordIO, which the job's file names (Gluon).

Make the set once, where all workers can read it::

    python digits_records.py --write /srv/data/digits.rec

and name it in the job's file::

    [data]
    url = "file:///srv/data/digits.rec"
    format = "recordio"

Workers then read their chunks of it and nothing else. What a plain script would not
have is marked with (O).
"""

import argparse
import sys

import optimus  # (O) before mxnet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="make the data set, and end")
    parser.add_argument("--samples", type=int, default=6144, help="with --write")
    parser.add_argument("--data", metavar="FILE", help="when run alone")
    parser.add_argument("--global-batch", type=int, default=256, help="when run alone")
    parser.add_argument("--epochs", type=int, default=10, help="when run alone")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def write(file: str, samples: int, seed: int) -> None:
    import mxnet as mx

    import synthetic

    data = synthetic.Digits(samples, seed)
    writer = mx.recordio.MXRecordIO(file, "w")
    for number, (image, label) in enumerate(zip(data.images, data.labels)):
        header = mx.recordio.IRHeader(0, float(label), number, 0)
        writer.write(mx.recordio.pack(header, image.tobytes()))
    writer.close()


options = arguments()
if options.write:
    write(options.write, options.samples, options.seed)
    sys.exit()
job = optimus.init(  # (O) servers and the scheduler stay in here
    global_batch=options.global_batch, epochs_max=options.epochs, seed=options.seed
)

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon


def decode(records):
    """Images (n, 1, 16, 16) and labels (n,) of packed records."""
    unpacked = [mx.recordio.unpack(record) for record in records]
    images = np.stack([np.frombuffer(content, np.float32) for _, content in unpacked])
    labels = np.array([header.label for header, _ in unpacked], np.float32)
    return mx.nd.array(images.reshape(-1, 1, 16, 16)), mx.nd.array(labels)


mx.random.seed(options.seed)
net = gluon.nn.HybridSequential()
net.add(
    gluon.nn.Conv2D(16, kernel_size=3, padding=1, activation="relu"),
    gluon.nn.MaxPool2D(),
    gluon.nn.Dense(64, activation="relu"),
    gluon.nn.Dense(10),
)
net.initialize(mx.init.MSRAPrelu())
net.hybridize(static_alloc=True)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = job.trainer(  # (O)
    net, "adam", {"learning_rate": options.learning_rate}, input_shape=(1, 1, 16, 16)
)
data = job.dataset(options.data, format="recordio")  # (O)

for epoch in job.epochs(data):  # (O)
    for batch in epoch:
        x, y = decode(batch.records)  # (O) this worker's part of the next records
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step()
        job.record(loss)  # (O)
    print(f"epoch {epoch.number} loss {epoch.loss:.4f}")
job.finish()  # (O)
