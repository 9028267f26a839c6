"""How are random transforms the same in every run, though threads run them in any order?

Each sample has its own seed, made from the seed of the run, the name of its job, the epoch and the index.
"""

from __future__ import annotations

import hashlib
import struct


def seed_of_job(seed: int, job: str | None) -> int:
    """Return the seed of a run with this name. Jobs that share have the same seed, but random numbers of their own."""
    if job is None:
        return seed
    return int.from_bytes(hashlib.blake2s(f"{seed} {job}".encode(), digest_size=8).digest()) >> 1


def seed_of(run: int, epoch: int, index: int, use: int) -> int:
    """Return the seed of one sample in one epoch. If the sample is used several times, `use` distinguishes the uses."""
    facts = struct.pack("<QQQQ", run & (1 << 64) - 1, epoch, index, use)
    return int.from_bytes(hashlib.blake2s(facts, digest_size=8).digest()) >> 1


def seed_of_batch(run: int, epoch: int, index: int, use: int) -> int:
    """Return the seed of a `collate_fn` for the batch that begins with this sample: another one than the sample's."""
    return seed_of(run, epoch, index, use | 1 << 63)
