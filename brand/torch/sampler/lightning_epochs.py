"""Does a Lightning Trainer train exactly the rest of an epoch, and the samples that it names?

Lightning tells a sampler only the number of the epoch, and counts batches itself: it resumes inside an epoch by
training as many batches as its own count leaves. So this module inspects the callers of a sampler: the training loop,
which calls `set_epoch`, and `predict`, which notes the ints of a sampler as sample indices. Lightning is not imported
here, so it has no effect if it is not in use.
"""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from brand.errors import UsageError, counted
from brand.torch.job.callers import caller, methods

_PAGE: Final = "docs/guides/frameworks.md"
_BY_INDEX: Final = "torch.utils.data.DataLoader(dataset, batch_size=...), which reads by random access"

log = logging.getLogger("brand")


@dataclass(frozen=True, slots=True)
class TrainerEpoch:
    """An epoch that the training loop of a Trainer is about to train from a loader."""

    loader: Any
    most: float
    """Number of batches after which the Trainer ends the epoch, unless the user has set a limit."""
    resumes: bool
    """Whether it resumes inside the epoch."""
    done: int
    """Number of batches of the epoch that were trained before the checkpoint, by Lightning's count."""
    under_way: int
    """Number of batches that the loader had delivered before the checkpoint, and that were not trained."""
    mode: str
    """How batches of several loaders are combined; empty if there is one loader."""

    def place(
        self, epoch: int, place: tuple[int, int], left: Callable[[int], int], size: int, *, begun: bool
    ) -> tuple[int, int]:
        """Return the place at which this epoch continues, if Lightning trains exactly the rest of it.

        Args:
            epoch: The epoch that Lightning names.
            place: Epoch and place of the loaded state.
            left: The number of batches of a loader from a place of the epoch on.
            size: The places that one batch of each rank takes up.
            begun: Whether worker processes have begun with `place`.

        Raises:
            UsageError: Lightning would lose or repeat samples.
        """
        if not hasattr(self.loader, "load_state_dict"):
            raise UsageError(
                f"Lightning goes on inside epoch {epoch}, and a DataLoader has no state to go on from: it would begin "
                "the epoch again and end it early. Use BrandLoader, or torchdata's StatefulDataLoader, which Lightning "
                f"saves in its checkpoints ({_PAGE})"
            )
        (coming, at), length = place, left(0)
        turns, trained = divmod(self.done, length)
        if turns and self.mode != "max_size_cycle":
            raise UsageError(
                f"Lightning goes on inside epoch {epoch}, of which this loader has delivered all {length} batches. A "
                f'CombinedLoader of mode "{self.mode}" does not save that, and would take batches of the next epoch '
                f'from it: resume at the end of an epoch, or use the mode "max_size_cycle" ({_PAGE})'
            )
        if self.under_way and begun:
            said = "the checkpoint was saved inside a step: %s of epoch %d was not trained, and is left out"
            log.warning(said, counted(self.under_way, "batch", "batches"), epoch)
        elif self.under_way and coming == epoch + turns + 1 and at == 0:
            coming, at = coming - 1, trained * size
        elif self.under_way:
            at -= self.under_way * size
        rest, trains = left(at), length - trained - self.under_way * begun
        if coming == epoch + turns and rest > trains:
            raise UsageError(
                f"Lightning counts batches: it has trained {trained} of {length} in epoch {epoch}, "
                f"and would train {trains} more of the {rest} that are left. Go on inside an epoch with as many "
                f"processes and samples a batch as before; between epochs any number will do ({_PAGE})"
            )
        if coming == epoch + turns and rest < trains:
            said = (
                "Lightning counts %s to train in epoch %d, and %d are left with this number of processes and samples "
                "a batch: it does not validate after this epoch, nor step with gradients that it has accumulated"
            )
            log.warning(said, counted(trains, "batch", "batches"), epoch, rest)
        return coming, at

    def warn_of_rest(self, epoch: int, length: int) -> None:
        """Log how many batches the Trainer leaves out, because other epochs have fewer than this one."""
        if length > self.most:
            said = (
                "Lightning trains %d batches in each epoch, as many as it has counted first, and epoch %d has %d: it "
                "leaves out the last %s. Give Trainer(reload_dataloaders_every_n_epochs=1) a BrandDataModule (%s)"
            )
            rest = counted(int(length - self.most), "batch", "batches")
            log.warning(said, self.most, epoch, length, rest, _PAGE)


def trainer_epoch() -> TrainerEpoch | None:
    """Return the epoch of a Trainer whose training loop has called the calling `set_epoch`; otherwise None.

    `_set_sampler_epoch(dataloader, epoch)` calls the sampler, and the loop calls this function.
    """
    if not _in_use():
        return None
    frames = [frame for frame, _ in islice(traceback.walk_stack(inspect.currentframe()), 4)]
    if len(frames) < 4 or frames[2].f_code.co_name != "_set_sampler_epoch":
        return None
    _, _, sets, calls = frames  # this function, `set_epoch`, its caller, and the caller of that
    loader: Any = sets.f_locals.get("dataloader")
    loop: Any = calls.f_locals.get("self")
    if loader is None or not hasattr(loop, "restarted_mid_epoch"):
        return None
    batches, combined = loop.epoch_loop.batch_progress, loop._combined_loader
    ended = loop.epoch_loop.restarted_on_train_batch_end and batches.is_last_batch
    ready, processed = batches.current.ready, batches.current.processed
    done = processed if processed == ready else batches.current.completed
    limited = loop.trainer.limit_train_batches != 1.0 or len(combined.flattened) > 1
    return TrainerEpoch(
        loader=loader,
        most=float("inf") if limited else loop.max_batches,
        resumes=loop.restarted_mid_epoch and not ended,
        done=done,
        under_way=ready - done,
        mode=combined._mode if len(combined.flattened) > 1 else "",
    )


def first_epoch() -> int | None:
    """Return the epoch that a Trainer will train from the iterator that it makes now; None if it makes none.

    Worker processes fetch from the calling sampler as soon as their loader has an iterator, before the epoch is set. A
    stream is told no epoch. If Lightning 2.5 resumes, it makes two iterators of the first epoch.
    """
    if not _in_use():
        return None
    loop: Any = caller("setup_data")
    if hasattr(loop, "restarted_mid_epoch"):
        return int(loop.epoch_progress.current.processed) + int(_after_last(loop))
    loop = caller("on_run_start")
    return int(loop.trainer.current_epoch) if type(loop).__name__ == "_TrainingEpochLoop" else None


def _after_last(loop: Any) -> bool:
    """Whether a Trainer that makes its loaders now resumes after the last batch of an epoch."""
    batches, epochs = loop.epoch_loop.batch_progress, loop.epoch_progress
    return bool(
        loop.restarting
        and batches.is_last_batch
        and batches.total.ready == batches.total.processed == batches.total.completed + 1
        and epochs.total.processed == epochs.total.started - 1
    )


def resumes_inside(loop: Any) -> bool:
    """Whether the training loop of a Trainer goes on inside an epoch."""
    if loop.restarted_mid_epoch:
        return not (loop.epoch_loop.restarted_on_train_batch_end and loop.epoch_loop.batch_progress.is_last_batch)
    total = loop.epoch_progress.total
    begun = total.ready == total.started == total.processed + 1
    return bool(loop.restarting and begun and not _after_last(loop))


def notes_indices(batch_sampler: object) -> bool:
    """Whether `Trainer.predict` takes batches from a batch sampler, and notes their ints as sample indices."""
    return _in_use() and type(batch_sampler).__name__ == "_IndexBatchSamplerWrapper"


def refuse_trainer() -> None:
    """Raise `UsageError` if a Trainer asks the calling sampler for batches to predict, or for those of each epoch."""
    if not _in_use():
        return
    for asking, frame in methods():
        if frame.f_code.co_name == "__next__" and notes_indices(asking):
            raise UsageError(PREDICT)
        if type(asking).__name__ == "_FitLoop" and asking.trainer.overfit_batches:
            raise UsageError(OVERFIT)


def _in_use() -> bool:
    return "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules


PREDICT: Final = (
    "Trainer.predict notes which sample indices a batch has, and Brand's loaders and samplers fetch encoded positions, "
    f"in random order. Give predict a {_BY_INDEX}, or BrandDataModule(predict=dataset) ({_PAGE})"
)
OVERFIT: Final = (
    "overfit_batches takes the first batches of each epoch, and Brand's loaders and samplers yield others in each. "
    f"Give it a {_BY_INDEX}, or a BrandDataModule ({_PAGE})"
)
