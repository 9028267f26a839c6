"""A rank of a training on several nodes: `python -m tests.several_nodes.sampling PATH SERVER EPOCHS SEED EXTRA`.

It says `ready` and waits for a line. It draws EPOCHS epochs in the order of SEED, and says `begun` at the first batch;
at the end it says which indices it has drawn, or why it could not. With an EXTRA seed it first draws a batch of one
more sampler, and keeps that loader.
"""

from __future__ import annotations

import json
import sys

from brand.errors import BrandError
from brand.torch import BrandDataset, BrandLoader, BrandSampler


def loader_of(data_set: BrandDataset, seed: int) -> BrandLoader:
    """All samplers of the program are made here."""
    return BrandLoader(data_set, 16, sampler=BrandSampler(data_set, seed=seed))


def main(path: str, server: str, epochs: str, seed: str, extra: str) -> None:
    """Draw."""
    data_set = BrandDataset(path, fields=("index",), server=server)
    kept = None
    if extra:
        kept = iter(loader_of(data_set, int(extra)))
        next(kept)
    _say("ready")
    sys.stdin.readline()
    try:
        loader = loader_of(data_set, int(seed))
        found: list[int] = []
        for epoch in range(int(epochs)):
            for (batch,) in loader:
                if not found:
                    _say("begun")
                found += batch.tolist()
            loader.set_epoch(epoch + 1)
        _say(found)
    except BrandError as error:
        _say(f"{type(error).__name__}: {error}")
    del kept


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
