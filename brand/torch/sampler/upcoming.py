"""`Upcoming`: at which epoch and position does the next iteration of a sampler begin?

At the epoch after the present iteration's, at the epoch that `set_epoch` named, or at the place of a loaded state. A
`BrandSampler` counts places in an epoch as positions, a batch sampler counts batches. Both have one `Upcoming`, which
owns the place and knows the iteration that began last.
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
    """An iteration that has begun."""

    @property
    def epoch(self) -> int | None:
        """Its epoch; None if it has not begun."""


@dataclass(frozen=True, slots=True)
class IterationStart:
    """Epoch and place at which an iteration begins."""

    epoch: int
    at: int = 0
    """The global position, or the number of the batch."""
    loaded: bool = False
    """Whether they are those of a loaded state."""


_Kind = TypeVar("_Kind", bound=StartedIteration)


class Upcoming(Generic[_Kind]):
    """The place at which the next iteration begins, and the present iteration.

    Args:
        epochs_hint, turns_hint: Sentences that follow the refusal to go back to an earlier epoch, and the refusal to
            continue an iteration after another one was set.
    """

    def __init__(self, *, epochs_hint: str = "", turns_hint: str = "") -> None:
        self.beginning: IterationStart | None = IterationStart(0)
        """The start of the next iteration; None if it is the epoch after the present one."""
        self.present: _Kind | None = None
        """The iteration that began last."""
        self._epochs_hint, self._turns_hint = epochs_hint, turns_hint

    def __repr__(self) -> str:
        coming = "" if self.beginning is None else f", next epoch {self.beginning.epoch} from {self.beginning.at:,}"
        return f"{self.present!r}{coming}"

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be, or the epoch of the present iteration."""
        return self._epoch_of_present() if self.beginning is None else self.beginning.epoch

    def place(self) -> tuple[int, int]:
        """Return the epoch and place at which the next iteration begins. Raises `UsageError` if no epoch is left."""
        if self.beginning is not None:
            return self.beginning.epoch, self.beginning.at
        return whole("epoch", self._epoch_of_present() + 1, MAX_EPOCH), 0

    def set_epoch(self, epoch: int, rest: Callable[[IterationStart], str]) -> None:
        """Begin the next iteration with this epoch, from its beginning or from the place of its loaded state.

        `rest` names the remainder of an epoch from a place on, for the log. Raises `UsageError` if a state of a later
        epoch was loaded.
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
        """Begin the next iteration at the place of a loaded state.

        `present`: an iteration that this state has ended.
        """
        self.beginning, self.present = IterationStart(epoch, at, loaded=True), present

    def begin(self, iteration: _Kind) -> None:
        """Make an iteration the present one, whose first element is about to be taken."""
        self.beginning, self.present = None, iteration

    def replaces(self, iteration: _Kind, *, ended: bool) -> bool:
        """Return whether the next iteration is set and differs from this one.

        If this one has `ended`, any other differs.
        """
        coming = self.beginning
        return coming is not None and (coming.loaded or coming.epoch != iteration.epoch or ended)

    def go_on(self, iteration: _Kind) -> None:
        """Continue an iteration. Raises `UsageError` if `set_epoch` or a loaded state has requested another one.

        Otherwise the caller would believe that it gets another epoch.
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
