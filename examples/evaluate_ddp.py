"""Evaluate on several ranks, so that every sample counts exactly once, whatever the number of ranks.

    brand convert images examples/data/photos photos.brand
    python -m torch.distributed.run --nproc-per-node 2 examples/evaluate_ddp.py photos.brand

With even=False, each sample goes to one rank, so some ranks get one sample more than others. Collective operations come
after the loop. The model is missing on purpose. In place of a DistributedDataParallel model, call its `module`: the
wrapper synchronises buffers in each forward pass, and would wait for a rank that has no batch left.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist

from brand import BrandDataset, BrandLoader, BrandSampler, DecodeImage


def main() -> None:
    """Count the samples of each rank, and those of all ranks together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a data set of images")
    parser.add_argument("--batch-size", type=int, default=5, help="samples of a batch of each rank")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    decode = {"image": DecodeImage(size=(64, 64))}
    data = BrandDataset(args.path, fields=("image", "index"), decode=decode, memory=0.25, order="storage")
    loader = BrandLoader(data, args.batch_size, sampler=BrandSampler(data, even=False))
    seen = torch.zeros(len(data), dtype=torch.int64)
    fetched = 0
    for images, indices in loader:
        fetched += len(images)
        seen[indices] += 1  # in place of the metric
    counts = torch.tensor([fetched, int(seen.sum())])
    dist.all_reduce(counts)
    dist.all_reduce(seen)
    if rank == 0:
        once = bool((seen == 1).all())
        print(f"{counts[0]} samples fetched by {ranks} ranks, {counts[1]} counted, each of {len(data)} once: {once}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
