"""Train a classifier in JAX, in one process or in several, without PyTorch; stop, and resume exactly.

    python examples/train_jax.py train.brand --epochs 2
    python examples/train_jax.py train.brand --epochs 2 --checkpoint run.npz --stop 30     # stops after 30 steps
    python examples/train_jax.py train.brand --epochs 2 --checkpoint run.npz               # resumes
    python examples/train_jax.py train.brand --job 127.0.0.1:9000 2 0                      # process 0 of 2; 1 likewise

The first and the third print the same checksum of the model, to the bit. A step has the same samples in one process and
in several, so the model of the last is the same up to rounding.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from brand import ArrayLoader, BrandDataset, BrandSampler, DecodeImage

Model = dict[str, Any]
BATCH = 64
"""Samples of a step, of all processes together."""


def loss_of(model: Model, images: Any, labels: Any) -> Any:
    """Return the cross entropy of a linear model."""
    logits = images.reshape(len(images), -1) / 255 @ model["weights"] + model["bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def stepped(model: Model, images: Any, labels: Any) -> Model:
    """Return the model after a step of gradient descent."""
    slopes = jax.grad(loss_of)(model, images, labels)
    return {name: value - 0.1 * slopes[name] for name, value in model.items()}


def save(path: Path, model: Model, state: dict[str, Any]) -> None:
    """Write the model and the loader state in one file, whole or not at all."""
    with open(f"{path}.new", "wb") as file:
        values: dict[str, Any] = {name: np.asarray(value) for name, value in model.items()}
        np.savez(file, state=json.dumps(state), **values)
    Path(f"{path}.new").replace(path)


def main() -> None:
    """Train, and print a checksum of the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a data set of images of 28 x 28 pixels")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, help="resume from this file, and write it at the end")
    parser.add_argument("--stop", type=int, help="end after this many steps")
    parser.add_argument("--job", nargs=3, metavar=("ADDRESS", "PROCESSES", "PROCESS"), help="one process of several")
    args = parser.parse_args()
    if args.job:  # before the first use of the data set, which then gives each process its share
        jax.distributed.initialize(args.job[0], int(args.job[1]), int(args.job[2]))

    decode = {"image": DecodeImage(size=(28, 28), mode="L")}
    data = BrandDataset(args.data, fields=("image", "label"), decode=decode)
    loader = ArrayLoader(data, BATCH // jax.process_count(), sampler=BrandSampler(data, seed=7), drop_last=True)
    model: Model = {"weights": np.zeros((28 * 28, 10), np.float32), "bias": np.zeros(10, np.float32)}
    if args.checkpoint and args.checkpoint.exists():
        found = np.load(args.checkpoint)
        model = {name: found[name] for name in model}
        loader.load_state_dict(json.loads(str(found["state"])))

    split = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))
    step, steps = jax.jit(stepped), 0
    for _ in range(loader.state_dict()["epoch"], args.epochs):
        for images, labels in loader:
            batch = [jax.make_array_from_process_local_data(split, values) for values in (images, labels)]
            model = step(model, *batch)
            steps += 1
            if steps == args.stop:
                break
        if steps == args.stop:
            break
    if args.checkpoint and jax.process_index() == 0:
        save(args.checkpoint, model, loader.state_dict())
    weights = np.asarray(model["weights"])
    checksum = hashlib.sha256(weights.tobytes()).hexdigest()[:16]
    size = np.linalg.norm(weights)
    print(f"process {jax.process_index()}: {steps} steps, weights of {size:.5f}, checksum {checksum}")


if __name__ == "__main__":
    main()
