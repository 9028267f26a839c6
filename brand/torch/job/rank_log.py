"""What does the log say about the rank of this process, so that no rank is a surprise?

A process may inherit the variables of a launcher without being a rank of the job: trials of a search that `srun` has
started, a program that a rank has started. It would then get a share of the samples. The log says whose rank it is when
the first iteration begins, and warns at the end of the first epoch if there is still no process group of that size. A
rank that evaluates alone, in a job whose other ranks do not, gets a share, too: the log says so when it has done it
alone, or does it again. Ranks of an unknown launcher all get all samples, in one order, as does a rank that fetches
before its process group is initialised: the log says so, too.
"""

from __future__ import annotations

import logging
from typing import Final

from brand.torch.job.discovery import missing_ranks, others_begun
from brand.torch.job.ranks import half_said, has_group
from brand.torch.job.twins import find_twin

log = logging.getLogger("brand")

_OWN: Final = "for a run of its own pass num_replicas=1, rank=0"

_UNSEEN: Final = (
    "no rank sees the samples of those ranks. To evaluate on one rank, pass num_replicas=1, rank=0 to its sampler"
)
_ALONE: Final = "alone"
_RANKS: Final = (
    "if they are ranks of one training, initialise torch.distributed before the first fetch, or pass num_replicas= and "
    "rank=; if not, pass num_replicas=1, rank=0"
)
_PATIENCE_S: Final = 2.0
"""Seconds that other ranks may be late."""

_said = set[str]()
"""Messages of this process, each of which it says once."""


def say_rank(rank: int, replicas: int, source: str) -> None:
    """Say in the log which rank this process is. It is a warning if there is no process group of that size."""
    if source and replicas > 1:
        group = has_group(replicas)
        level = logging.INFO if group else logging.WARNING
        lonely = "" if group else ", and there is no process group of that size"
        _say(level, f"begin {rank} {replicas} {group}", f"rank {rank} of {replicas}, from {source}{lonely}; {_OWN}")
        if _ALONE in _said:
            _say(
                logging.WARNING,
                "late",
                f"this process has begun an epoch with all samples before it was rank {rank} of {replicas}, from "
                f"{source}: the ranks see the same samples until then. Initialise it before the first fetch, or pass "
                "num_replicas=1, rank=0 to the sampler that fetches before",
            )


def warn_remainder(samples: int, of: int, name: str) -> None:
    """Warn if Accelerate, which has prepared the loader of a subset, counts the samples of the whole data set."""
    if samples != of:
        _say(
            logging.WARNING,
            f"remainder {samples} {of} {name}",
            f"Accelerate counts the {of:,} samples of {name}, and this sampler fetches {samples:,} of them, so "
            "accelerator.gather_for_metrics drops a wrong number of samples from the last batch. To evaluate, prepare "
            "a DataLoader of torch.utils.data.Subset(dataset, indices). Training is not affected",
        )


def warn_counted(name: str) -> None:
    """Warn that Accelerate, which has prepared the loader, counts epochs from 0, also in a run that resumes."""
    _say(
        logging.WARNING,
        f"counted {name}",
        f"Accelerate counts the epochs of {name} from 0, and its checkpoints do not have the count. If this run "
        "resumes another one, it trains the order of epoch 0 again: use brand.frameworks.accelerate.prepare in place "
        "of accelerator.prepare(loader), or call set_epoch of the prepared loader, with Accelerate 1.7 or newer "
        "(docs/guides/frameworks.md)",
    )


def warn_stateless(name: str) -> None:
    """Warn that a `StatefulDataLoader` saves no state of the sampler, so a resumed run would begin with epoch 0."""
    _say(
        logging.WARNING,
        f"stateless {name}",
        f"a StatefulDataLoader with this batch_sampler= saves no epoch of {name}. If this run resumes another one, it "
        "trains the order of epoch 0 again: use StatefulDataLoader(dataset, batch_size, sampler=BrandSampler(dataset)),"
        " without batch_sampler=; with Accelerate, use brand.frameworks.accelerate.prepare in place of "
        "accelerator.prepare(loader) (docs/guides/frameworks.md)",
    )


def warn_new_worker() -> None:
    """Warn that each epoch of a stream begins in a new worker process, and so with the same epoch."""
    _say(
        logging.WARNING,
        "new worker",
        "a DataLoader begins a new worker process for each epoch of an IterableDataset, and the BrandSampler in it "
        "begins with the same epoch each time: all epochs have one order. Give the DataLoader num_workers=0 (a "
        "BrandLoader has threads of its own) or persistent_workers=True, and make the BrandLoader in the __init__ of "
        "the IterableDataset (docs/guides/more-frameworks.md)",
    )


def say_alone(what: str, name: str) -> None:
    """Warn if a process that gets all samples, because it found no job, looks like a rank of one.

    `what` identifies the order of the samples, `name` is the user's name for the data set.
    """
    _said.add(_ALONE)
    if half := half_said():
        _say(logging.WARNING, "half", f"this process gets all samples of {name}, but {half}: {_RANKS}")
    elif (twin := find_twin(f"{name}|{what}")) is not None:
        _say(
            logging.WARNING,
            f"twin {what}",
            f"process {twin} has the same command, and gets all samples of {name} in the same order: {_RANKS}",
        )


def warn_lonely(rank: int, replicas: int, source: str, *, seen: int, samples: int) -> None:
    """Warn at the end of an epoch if the rank comes from the environment alone."""
    if source and replicas > 1 and not has_group(replicas):
        _say(
            logging.WARNING,
            "end",
            f"this process has seen {seen:,} of {samples:,} samples in this epoch, as rank {rank} of {replicas}: "
            f"{source} says so, and no process group of that size has appeared; {_OWN}",
        )


def warn_alone(replicas: int, source: str, what: str, name: str) -> None:
    """Warn if this rank begins the same samples again, and another rank has not begun them once.

    `what` identifies the order of the samples, `name` is the user's name for the data set.
    """
    if source == "torch.distributed" and replicas > 1 and (missing := missing_ranks(what)):
        alone = len(missing) == 1
        ranks, have = f"{'rank' if alone else 'ranks'} {', '.join(map(str, missing))}", "has" if alone else "have"
        _say(
            logging.WARNING,
            f"alone {what}",
            f"this rank begins an epoch of {name} again, and {ranks} of {replicas} {have} not begun one: {_UNSEEN}",
        )


def warn_first(rank: int, replicas: int, source: str, what: str, name: str) -> None:
    """Warn if rank 0 has ended its first epoch of these samples, and no other rank has begun one.

    Waits some seconds for the others, so that a rank which is a little late is none that never comes.
    """
    if source == "torch.distributed" and rank == 0 and replicas > 1 and f"first {what}" not in _said:
        _said.add(f"first {what}")
        if not others_begun(what, _PATIENCE_S):
            text = (
                f"this rank has ended an epoch of {name}, and none of the other {replicas - 1} has begun one: {_UNSEEN}"
            )
            _say(logging.WARNING, f"alone {what}", text)


def _say(level: int, key: str, text: str) -> None:
    if key not in _said:
        _said.add(key)
        log.log(level, text)
