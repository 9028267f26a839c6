"""Mix two data sets with exact shares in every global batch, on two ranks.

    python -m torch.distributed.run --nproc-per-node 2 examples/mixture.py train.brand test.brand

The model is missing on purpose: with DistributedDataParallel the loop is the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch.distributed

from brand import BrandDataset, BrandLoader, BrandSampler, Mixture

GLOBAL_BATCH = 100


def main() -> None:
    """Fetch two epochs on each rank, and count the samples of all ranks together in each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path, help="a data set: 70 % of each global batch")
    parser.add_argument("other", type=Path, help="another data set: 30 %")
    args = parser.parse_args()

    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    one, other = (BrandDataset(path, decode=False, memory=0.25) for path in (args.one, args.other))
    mixture = Mixture({one: 0.7, other: 0.3}, seed=0)
    loader = BrandLoader(mixture, batch_size=GLOBAL_BATCH // ranks, sampler=BrandSampler(mixture))
    for epoch in range(2):
        loader.set_epoch(epoch)
        shares = set()
        for batch in loader:
            counts = torch.bincount(batch["member"], minlength=2)
            torch.distributed.all_reduce(counts)
            shares.add(tuple(counts.tolist()))
        if rank == 0:
            print(f"epoch {epoch}: {len(loader)} global batches, shares {sorted(shares)}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
