"""`Upcoming`: where does the next iteration of a sampler begin?

At the epoch after the present iteration's, at the epoch that `set_epoch` named, or where a loaded state says. A
`BrandSampler` counts places in an epoch as positions, a `LengthBatchSampler` as batches; both keep one `Upcoming`,
which owns the place and knows the iteration that began last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from brand.errors import UsageError
from brand.orders.order import MAX_EPOCH
from brand.torch.order.sequence import whole

log = logging.getLogger("brand")


class StartedIteration(Protocol):
    """What an iteration that has begun tells."""

    @property
    def epoch(self) -> int | None:
        """Its epoch. None: it has not begun."""


@dataclass(frozen=True, slots=True)
class IterationStart:
    """Where an iteration begins."""

    epoch: int
    at: int = 0
    """The global position, or the number of the batch."""
    loaded: bool = False
    """Whether a loaded state says so."""


_Kind = TypeVar("_Kind", bound=StartedIteration)


class Upcoming(Generic[_Kind]):
    """Where the next iteration begins, and which iteration is the present one.

    Args:
        epochs_hint, turns_hint: Sentences that follow the refusal to go back to an earlier epoch, and the refusal to
            continue an iteration after another one was set.
    """

    def __init__(self, *, epochs_hint: str = "", turns_hint: str = "") -> None:
        self.beginning: IterationStart | None = IterationStart(0)
        """Where the next iteration begins; None: at the epoch after the present one."""
        self.present: _Kind | None = None
        """The iteration that began last."""
        self._epochs_hint, self._turns_hint = epochs_hint, turns_hint

    def __repr__(self) -> str:
        coming = "" if self.beginning is None else f", next epoch {self.beginning.epoch} from {self.beginning.at:,}"
        return f"{self.present!r}{coming}"

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be, or that the present one is in."""
        return self._epoch_of_present() if self.beginning is None else self.beginning.epoch

    def place(self) -> tuple[int, int]:
        """Epoch and place at which the next iteration begins. Raises `UsageError` where no epoch is left."""
        if self.beginning is not None:
            return self.beginning.epoch, self.beginning.at
        return whole("epoch", self._epoch_of_present() + 1, MAX_EPOCH), 0

    def set_epoch(self, epoch: int, rest: Callable[[IterationStart], str]) -> None:
        """Begin the next iteration with this epoch; in it, at the place of a loaded state of this epoch.

        `rest` names what an epoch has from a place on, for the log. Raises `UsageError` where a state of a later epoch
        was loaded.
        """
        coming = self.beginning
        if coming is not None and coming.loaded:
            if epoch == coming.epoch:
                return
            if epoch < coming.epoch:
                raise UsageError(
                    f"a state of epoch {coming.epoch} was loaded, and set_epoch({epoch}) would go back: begin the loop "
                    f"over epochs with {coming.epoch} (`state['epoch']`){self._epochs_hint}"
                )
            if coming.at:
                said = "set_epoch(%d) leaves out the last %s of epoch %d, inside which the loaded state is"
                log.warning(said, epoch, rest(coming), coming.epoch)
        self.beginning = IterationStart(epoch)

    def load(self, epoch: int, at: int, *, present: _Kind | None = None) -> None:
        """Begin the next iteration where a state says. `present`: an iteration that this state has ended."""
        self.beginning, self.present = IterationStart(epoch, at, loaded=True), present

    def begin(self, iteration: _Kind) -> None:
        """An iteration has begun: its first element is about to be taken."""
        self.beginning, self.present = None, iteration

    def replaces(self, iteration: _Kind, *, ended: bool) -> bool:
        """Whether the next iteration is set and differs from this one. Where this one has `ended`, any differs."""
        coming = self.beginning
        return coming is not None and (coming.loaded or coming.epoch != iteration.epoch or ended)

    def go_on(self, iteration: _Kind) -> None:
        """An iteration goes on. Raises `UsageError` where `set_epoch` or a loaded state asks for another one by now.

        The caller would otherwise believe that it gets another epoch.
        """
        coming = self.beginning
        if coming is not None and self.replaces(iteration, ended=False):
            said = "a state was loaded" if coming.loaded else f"set_epoch({coming.epoch}) was called"
            raise UsageError(
                f"{said} while an iteration of epoch {iteration.epoch} was under way, and that iteration went on: "
                f"begin a new one (`iter(loader)`) after it{self._turns_hint}"
            )
        self.beginning = None

    def _epoch_of_present(self) -> int:
        assert self.present is not None, "without an iteration, the next one is set"
        assert self.present.epoch is not None, "the present iteration has begun"
        return self.present.epoch
