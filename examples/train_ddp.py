"""Train with DistributedDataParallel: one process, several on one machine, or several machines. The script is the same.

    python examples/train_ddp.py train.brand test.brand
    torchrun --nproc-per-node 2 examples/train_ddp.py train.brand test.brand
    torchrun --nnodes 3 --node-rank N --master-addr HOST --master-port 29500 examples/train_ddp.py TRAIN TEST

On several machines the node servers find each other through the job's own store and exchange samples, so that each
reads only its share of the data. A folder of class folders works in place of a data set, for comparison: it is read
file by file with a DistributedSampler.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from train_fashion_mnist import accuracy, make_model, open_data, to_tensor

from brand import BrandDataset, BrandLoader, BrandSampler


def make_loader(args: argparse.Namespace) -> Any:
    """Batches of this rank: drawn by Brand, or read file by file."""
    if not (args.train / "brand.json").exists():
        folder = open_data(args.train)
        each: DistributedSampler[Any] = DistributedSampler(
            folder, dist.get_world_size(), dist.get_rank(), seed=args.seed, drop_last=True
        )
        return DataLoader(folder, args.batch_size, sampler=each, num_workers=2, persistent_workers=True, drop_last=True)
    data = BrandDataset(
        args.train,
        fields=("image", "label"),
        transform={"image": to_tensor},
        memory=args.memory,
        protocol=args.protocol,
        server=args.server,
    )
    sampler = BrandSampler(data, seed=args.seed, drop_last=True, locality=args.locality, batch_size=args.batch_size)
    return BrandLoader(data, args.batch_size, sampler=sampler, drop_last=True)


def train_epoch(model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer) -> float:
    """One epoch; the mean loss of this rank."""
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def main() -> None:
    """Train on all ranks, test on the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, help="a converted data set, or a folder of class folders")
    parser.add_argument("test", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a batch of each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=float, default=0.25, help="share of the data that each node's memory may hold")
    parser.add_argument("--protocol", choices=["stripes", "slots"], default="stripes")
    parser.add_argument("--locality", action="store_true", help="a rank takes first what its own node owns")
    parser.add_argument("--server", help="a node server that runs already, as `brand launch` prints it")
    args = parser.parse_args()

    if "WORLD_SIZE" not in os.environ:  # not under torchrun: a job of one rank
        os.environ |= {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = make_loader(args)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        started = time.perf_counter()
        loss = train_epoch(model, loader, optimizer)
        dist.barrier()
        if first:
            seconds, samples = time.perf_counter() - started, len(loader) * args.batch_size * dist.get_world_size()
            print(f"epoch {epoch}: {samples:,} samples in {seconds:.1f} s, loss {loss:.3f}", flush=True)
    if first:
        test = DataLoader(open_data(args.test), 256)
        print(f"test accuracy {accuracy(model.module, test):.4f}")
    if isinstance(loader, BrandLoader):
        done = loader.dataset.stats()
        here = f"{done['draws']:,} draws, {done['from_memory']:,} from memory"
        print(f"rank {dist.get_rank()}: its node has served {here}, {done['received']:,} samples came from other nodes")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
