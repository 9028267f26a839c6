"""Is a cell exact, refused or wrong? The steps of each run are compared with a slow, obvious model.

The model is the list of all samples of an epoch in Brand's order, as one process gets them that trains whole epochs in
a plain loop. Ranks take samples (or planned batches) of this list in turn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from brand.torch import BrandSampler
from tests.matrix.cells import OTHERS, PAGE, Cell
from tests.matrix.loops import BATCH, EARLY, EPOCHS, INSIDE, MORE, MatrixRun, Outcome, Samples, Task, ids_of

Epochs = list[list[list[int]]]
"""By epoch, the units that ranks take in turn: single samples, or the batches of a plan."""
PLANNED = ("length-grouped", "packed")


@dataclass(frozen=True)
class Phase:
    """A run of a cell: where it begins and where it is stopped."""

    ranks: int
    stop: tuple[int, int | None] | None = None
    begin: tuple[int, int] = (0, 0)
    """Epoch and unit."""


def model_of(samples: Samples, loader: str) -> Epochs:
    """The units of all epochs, from a plain loop of one process. Those of a `BrandSampler` are those of its order.

    There is an epoch more, for the evaluation after as many epochs, and after the one that Lightning begins to try it.
    """
    pieces = MatrixRun(Task(Cell("", loader, 1, 0, "", PAGE), None), samples, 1).pieces()  # type: ignore[arg-type]
    if loader in PLANNED:
        plan = pieces["batch_sampler"]
        plan.num_replicas, plan.rank = 1, 0
        collate = pieces.get("collate_fn", lambda batch: batch)
        epochs = []
        for _ in range(EPOCHS + 1):
            epochs.append([_ids(collate(pieces["dataset"].__getitems__(batch))) for batch in plan])
        return epochs
    sampler = pieces["sampler"]
    if loader == "mixture":
        sampler.num_replicas, sampler.rank = 1, 0
        return [[[n] for n in _ids(pieces["dataset"].__getitems__(list(sampler)))] for _ in range(EPOCHS + 1)]
    assert isinstance(sampler, BrandSampler)
    source = pieces["dataset"]._source.data
    return [[[n] for n in source.indices(sampler.order.plan(e).sample_of).tolist()] for e in range(EPOCHS + 1)]


def _ids(batch: Any) -> list[int]:
    """The numbers of samples of a batch, or of a list of samples."""
    if isinstance(batch, list):
        return [int(ids_of(sample)) for sample in batch]
    return [int(n) for n in ids_of(batch)]


def batches(units: int, planned: bool, ranks: int) -> int:
    """The batches that each rank makes of so many units."""
    each = -(-units // ranks)
    return each if planned else -(-each // BATCH)


def phases(cell: Cell, epochs: Epochs) -> list[Phase]:
    """The runs of a cell, one after the other."""
    planned, ranks = cell.loader in PLANNED, cell.ranks
    step = (1 if planned else BATCH) * ranks

    def stopped(stop: tuple[int, int | None], rest: tuple[int, int]) -> list[Phase]:
        return [Phase(ranks, stop), Phase(ranks, begin=rest)]

    match cell.use:
        case "inside":
            return stopped((1, INSIDE), (1, INSIDE * step))
        case "accumulation":
            return stopped((1, 2 * INSIDE), (1, 2 * INSIDE * step))
        case "last batch":
            return stopped((1, batches(len(epochs[1]), planned, ranks)), (2, 0))
        case "end":
            return stopped((1, None), (2, 0))
        case "twice":
            first, second = stopped((1, INSIDE), (1, INSIDE * step))
            return [first, replace(second, stop=(1, MORE)), Phase(ranks, begin=(1, (INSIDE + MORE) * step))]
        case "other processes":
            writers = 3 - ranks
            return [Phase(writers, (1, INSIDE)), Phase(ranks, begin=(1, INSIDE * step // ranks * writers))]
    return [Phase(ranks)]


def wrong(cell: Cell, phase: Phase, epochs: Epochs, outcomes: list[Outcome]) -> str:
    """The first difference between a run and the model; an empty text if there is none."""
    ends = [outcome.end for outcome in outcomes]
    if set(ends) != {"finished" if phase.stop is None else "stopped"}:
        told = next((o.message for o in outcomes if o.message), "")
        return f"it {' and '.join(sorted(set(ends)))}: {told}"
    if cell.use in OTHERS and (told := _unseen(cell, epochs, outcomes)):
        return told
    steps = [outcome.steps for outcome in outcomes]
    if cell.use in ("test", "predict") or (cell.framework, cell.use) == ("Accelerate", "validate"):
        return ""  # nothing is trained
    if cell.use == "overfit":
        each = [[batch for of, batch in some if of == epoch] for some in steps for epoch in range(EPOCHS)]
        same = all(len(each[n]) == 2 and each[n] == each[n - n % EPOCHS] for n in range(len(each)))
        return "" if same else "the epochs are not the same two batches"
    if len(set(map(len, steps))) > 1:
        return f"ranks trained {[len(of) for of in steps]} batches"
    expected = list(_expected(cell, phase, epochs))
    for number, (epoch, units) in enumerate(expected):
        if number >= len(steps[0]):
            return f"{len(steps[0])} batches in place of {len(expected)}: it ends before epoch {epoch} has ended"
        if {of[number][0] for of in steps} != {epoch}:
            return f"batch {number} is of epoch {[of[number][0] for of in steps]} in place of {epoch}"
        told = _compare([of[number][1] for of in steps], units, epochs[epoch], phase.ranks, cell.loader == "mixture")
        if told:
            return f"batch {number}, of epoch {epoch}: {told}"
    if len(steps[0]) > len(expected):
        return f"{len(steps[0])} batches in place of {len(expected)}"
    return ""


def _unseen(cell: Cell, epochs: Epochs, outcomes: list[Outcome]) -> str:
    """The difference between the samples of an evaluation and those of an epoch, of which each counts once.

    Ranks that are not gathered may have a sample or a planned batch more, as the page says.
    """
    if cell.use in ("tune", "overfit"):
        return ""
    facts = [outcome.facts for outcome in outcomes]
    if any("gathered" in of for of in facts):
        found, more = Counter(facts[0]["gathered"]), 0
    else:
        found = Counter(n for of in facts for n in of.get("seen", ()))
        more = (cell.ranks - 1) * max(map(len, epochs[0]))
    faults = [_difference(Counter(n for unit in epoch for n in unit), found, more) for epoch in epochs]
    if all(faults):  # each epoch of a mixture has samples of its own
        return faults[0]
    if any(of.get("indices", of.get("seen")) != of.get("seen") for of in facts):
        return "the indices of predictions are not those of the samples"
    return ""


def _difference(every: Counter[int], found: Counter[int], more: int) -> str:
    missing, repeated = (every - found).total(), (found - every).total()
    return f"an evaluation leaves out {missing} samples, and repeats {repeated}" if missing or repeated > more else ""


def _expected(cell: Cell, phase: Phase, epochs: Epochs) -> Any:
    """Epoch and units of each global batch."""
    planned = cell.loader in PLANNED
    step = (1 if planned else BATCH) * phase.ranks
    first, at = phase.begin
    for epoch in range(first, EPOCHS):
        count = batches(len(epochs[epoch]) - at, planned, phase.ranks)
        if phase.stop is not None and phase.stop[0] == epoch and phase.stop[1] is not None:
            count = phase.stop[1]
        elif cell.use == "left early":
            count = min(count, EARLY)
        for number in range(count):
            yield epoch, epochs[epoch][at + number * step : at + (number + 1) * step]
        if phase.stop is not None and phase.stop[0] == epoch:
            return
        at = 0


def _compare(found: list[list[int]], units: list[list[int]], epoch: list[list[int]], ranks: int, mixed: bool) -> str:
    """The difference between the batches of all ranks and the units that are due.

    Ranks take units in turn, those of a mixture in a random turn in each round, or (Accelerate) a batch each. The last
    batches of an epoch may be filled up.
    """
    turns = [[n for unit in units[rank::ranks] for n in unit] for rank in range(ranks)]
    blocks = [[n for unit in units[rank * BATCH : (rank + 1) * BATCH] for n in unit] for rank in range(ranks)]
    if found in (turns, blocks):
        return ""
    if mixed and [sorted(each) for each in zip(*found)] == [sorted(each) for each in zip(*turns)]:  # noqa: B905
        return ""
    due, trained = Counter(n for unit in units for n in unit), Counter(n for batch in found for n in batch)
    if due == trained:
        return "the samples are in another order"
    most = ranks * (max(map(len, epoch)) if max(map(len, epoch)) > 1 else BATCH)
    filled = trained - due
    if units[-1] == epoch[-1] and not due - trained and trained.total() <= most:
        return "" if set(filled) <= {n for unit in epoch for n in unit} else "it is filled up with other samples"
    return f"{(due - trained).total()} of {due.total()} samples are missing, {filled.total()} are others"
