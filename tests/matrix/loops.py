"""One run of a training loop: its loader, its model, what it trains, and when it is stopped.

A way (`tests.matrix.ways`) is a loop as users write it. It gets a `MatrixRun`, calls `run.train(epoch, batch)` for each
batch, and writes a checkpoint and returns when the run asks for it, as a preempted job ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from brand.torch import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, Mixture, PackedBatchSampler
from tests.matrix.cells import PAGE, Cell

BATCH, EPOCHS, SEED = 32, 3, 5
MEMBER = 1_000
"""A sample of the second member of a mixture has this number more than its index."""
ACCUMULATED = 4
EARLY = 3
"""Batches of each epoch of a loop that leaves its epochs early."""
INSIDE, MORE = 2, 2
"""Batches after which a run inside an epoch is stopped, and is stopped again."""
_LIMITS = {"batch_length": 860, "batch_size": BATCH}
"""With these, all epochs have as many batches. Lightning counts them once, and Brand logs what it then leaves out."""
_ROWS: dict[str, Any] = {"tokens_per_row": 128, "rows_per_batch": 6}


class EndedRunError(Exception):
    """The job was preempted."""


@dataclass(frozen=True)
class Task:
    """A run that a process is asked for."""

    cell: Cell
    folder: Path
    """The place of its checkpoint."""
    stop: tuple[int, int | None] | None = None
    """Epoch, and the batches of this run in that epoch, after which it is stopped; None: after the loop over them."""
    resume: Path | None = None
    """The folder of the checkpoint to go on from."""
    stock: tuple[tuple[int, ...], ...] = ()
    """The order of all epochs: train with the framework alone."""


@dataclass
class Outcome:
    """How a run ended in one process."""

    end: str = "finished"
    message: str = ""
    steps: list[tuple[int, list[int]]] = field(default_factory=list)
    """The trained batches: epoch, and the numbers of the samples."""
    facts: dict[str, Any] = field(default_factory=dict)
    """More of it: the weights, and what the uses besides training found."""


class Samples:
    """The data sets of a process."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = (
            BrandDataset(folder / name, memory=0.3, transform=as_numbers) for name in ("first.brand", "second.brand")
        )
        self.tokens = BrandDataset(folder / "first.brand", memory=0.3, fields=("tokens", "index"))
        self.mixture = Mixture({self.first: 0.7, self.second: 0.3}, samples=len(self.first))


def as_numbers(sample: dict[str, Any]) -> dict[str, int]:
    """The part of a sample that every collate function takes."""
    return {name: sample[name] for name in ("index", "member") if name in sample}


class Wrapped(IterableDataset[Any]):
    """A `BrandLoader` in the shape of a stream, as users of other libraries write it."""

    def __init__(self, loader: BrandLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader


class WrappedState(Wrapped):
    """And with the loader's state."""

    def state_dict(self) -> dict[str, Any]:
        """That of the loader."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """That of the loader."""
        self.loader.load_state_dict(state)


class Listed(torch.utils.data.DistributedSampler[int]):
    """The order of a run, without Brand: the framework's own loader follows it."""

    def __init__(self, order: tuple[tuple[int, ...], ...]) -> None:
        self.order, self.epoch = order, 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.order[self.epoch])

    def __len__(self) -> int:
        return len(self.order[self.epoch])

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch."""
        self.epoch = epoch


@dataclass
class MatrixRun:
    """One run of a loop in one process."""

    task: Task
    samples: Samples
    ranks: int
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def cell(self) -> Cell:
        return self.task.cell

    @property
    def page(self) -> bool:
        """Whether the loop is as the page says."""
        return self.cell.said == PAGE

    @property
    def accumulated(self) -> int:
        """Batches of an optimizer step."""
        return ACCUMULATED if self.cell.use == "accumulation" else 1

    @property
    def early(self) -> int | None:
        """Batches after which each epoch is left."""
        return EARLY if self.cell.use == "left early" else None

    @cached_property
    def model(self) -> nn.Module:
        """A layer, always with the same weights."""
        model = nn.Linear(1, 1)
        with torch.no_grad():
            model.weight.fill_(0.5)
            model.bias.fill_(0.25)
        return model

    def optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Without a state."""
        return torch.optim.SGD((model or self.model).parameters(), lr=0.05)

    def pieces(self) -> dict[str, Any]:
        """The arguments of the cell's loader: `dataset` and `sampler`, or `batch_sampler`; and `collate_fn`."""
        if self.task.stock:
            return {"dataset": [{"index": n} for n in range(MEMBER)], "sampler": Listed(self.task.stock)}
        samples = self.samples
        match self.cell.loader:
            case "length-grouped":
                grouped = LengthBatchSampler(samples.first, "count", seed=SEED, **_LIMITS)  # type: ignore[arg-type]
                return {"dataset": samples.first, "batch_sampler": grouped}
            case "packed":
                packed = PackedBatchSampler(samples.tokens, "count", seed=SEED, **_ROWS)
                collate = packed.collate("tokens")
                return {"dataset": samples.tokens, "batch_sampler": packed, "collate_fn": collate}
            case "mixture":
                return {"dataset": samples.mixture, "sampler": BrandSampler(samples.mixture, seed=SEED)}
        return {"dataset": samples.first, "sampler": BrandSampler(samples.first, seed=SEED)}

    def loader(self, kind: Any = DataLoader) -> Any:
        """The cell's loader. `kind`: the class that takes the place of a `DataLoader`."""
        pieces, workers = self.pieces(), self.cell.workers
        if "batch_sampler" not in pieces:
            pieces["batch_size"] = BATCH
        if self.task.stock:
            return DataLoader(**pieces)
        if self.cell.loader == "iterable wrapper":
            wrapped = (WrappedState if self.page else Wrapped)(BrandLoader(**pieces))
            return kind(wrapped, batch_size=None, num_workers=workers)
        if self.cell.loader == "BrandLoader":
            return BrandLoader(**pieces, num_workers=workers or None)
        if self.cell.loader == "DataLoader" or workers or kind is not DataLoader:
            return kind(**pieces, num_workers=workers)
        return BrandLoader(**pieces)

    def train(self, epoch: int, batch: Any) -> bool:
        """Note a batch; whether the run is stopped after it."""
        self.outcome.steps.append((epoch, ids_of(batch).tolist()))
        return self.task.stop == (epoch, self.trained(epoch))

    def sees(self, batch: Any) -> None:
        """Note a batch of an evaluation."""
        self.outcome.facts.setdefault("seen", []).extend(ids_of(batch).tolist())

    def trained(self, epoch: int) -> int:
        """The batches of an epoch so far, in this run."""
        return sum(of == epoch for of, _ in self.outcome.steps)

    def ends(self, epoch: int) -> bool:
        """Whether the run is stopped after the loop over the batches of an epoch."""
        return self.task.stop == (epoch, None)

    def write(self, **saved: Any) -> None:
        """The checkpoint; all ranks have the same."""
        self.task.folder.mkdir(parents=True, exist_ok=True)
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if not rank:
            torch.save(saved, self.task.folder / "checkpoint.pt")
        raise EndedRunError

    def read(self) -> Any:
        """The checkpoint to go on from."""
        assert self.task.resume is not None
        return torch.load(self.task.resume / "checkpoint.pt", weights_only=False)


def ids_of(batch: Any) -> torch.Tensor:
    """The numbers of the samples of a batch."""
    index: torch.Tensor = batch["index"]
    return index + MEMBER * batch["member"] if "member" in batch else index


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss that differs with each sample."""
    ids = ids_of(batch)
    loss: torch.Tensor = ((model(ids.float()[:, None] / MEMBER)[:, 0] - (ids % 7).float()) ** 2).mean()
    return loss


def keeper_of(loader: Any) -> Any:
    """The object with the state of a loader that has no state itself."""
    if isinstance(loader, BrandLoader):
        return loader
    if isinstance(loader.dataset, Wrapped):
        return loader.dataset.loader
    return loader.sampler if isinstance(loader.sampler, BrandSampler | Listed) else loader.batch_sampler


def state_of(loader: Any, batches: int) -> dict[str, Any]:
    """The state of a loader of which so many batches were trained, as the page says."""
    keeper = keeper_of(loader)
    if isinstance(keeper, BrandLoader):
        return keeper.state_dict()
    if isinstance(keeper, BrandSampler):
        return keeper.state_dict(batches=batches, batch_size=BATCH)
    state: dict[str, Any] = keeper.state_dict(batches=batches)
    return state
