"""Train with DistributedDataParallel: one process, several on one machine, or several machines. The script is the same.

python examples/train_ddp.py train.brand test.brand
torchrun --nproc-per-node 2 examples/train_ddp.py train.brand test.brand
torchrun --nnodes 3 --node-rank N --master-addr HOST --master-port 29500 examples/train_ddp.py TRAIN TEST
"""

from __future__ import annotations

import argparse
import gc
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from train_fashion_mnist import accuracy, make_model, to_tensor

from brand import BrandDataset, BrandLoader, BrandSampler


def main() -> None:
    """Train on all ranks, test on the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a batch of each rank")
    parser.add_argument("--memory", type=float, default=0.25, help="fraction of the data that a node's memory may hold")
    parser.add_argument("--locality", action="store_true", help="a rank prefers samples of its own node")
    parser.add_argument("--server", help="address of a running data server, as `brand launch` prints it")
    args = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:  # a job of one rank
        dist.init_process_group("gloo", "tcp://127.0.0.1:0", rank=0, world_size=1)
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pictures = partial(BrandDataset, fields=("image", "label"), transform={"image": to_tensor})
    data = pictures(args.train, memory=args.memory, server=args.server)
    sampler = BrandSampler(data, drop_last=True, locality=args.locality)
    loader = BrandLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {len(loader)} batches on each of {dist.get_world_size()} ranks")
    if dist.get_rank() == 0:
        print(f"test accuracy {accuracy(model.module, DataLoader(pictures(args.test), 256)):.2f}")
    dist.barrier()  # the lines of rank 0 first: two ranks that print at a time may print into one line
    print(f"rank {dist.get_rank()}: {data.stats()['received']:,} samples came from other nodes", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    gc.collect()  # frees the model, which keeps gloo's threads: a process that ends with them may abort
    dist.destroy_process_group()
