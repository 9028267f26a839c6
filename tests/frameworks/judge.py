"""What is a run of a framework worth: exact, refused, or wrong?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brand.orders.order import Order
from brand.storage.dataset.dataset import StoredDataSet
from tests.frameworks.loops import BATCH, EPOCHS
from tests.frameworks.program import STOPS, TWICE


def verdict(path: Path, ranks: list[dict[str, Any]], case: str) -> str:
    """`exact`, `refused`, or what is wrong; `ranks` are the results of all ranks, `case` names one run of each."""
    runs = [rank[case] for rank in ranks]
    ends = {run["end"] for run in runs}
    if "refused" in ends:
        told = next(run["message"] for run in runs if run["end"] == "refused")
        return "refused" if "docs/guides/frameworks.md" in told or "accelerator.prepare" in told else f"WRONG: {told}"
    if ends == {"no checkpoint"}:
        return "refused"  # the run that should have written it was
    name = case.rpartition("|")[2]
    if len(ends) > 1 or ends != {"stopped" if name in STOPS or name == "again" else "finished"}:
        return f"WRONG: {[(run['end'], run['message']) for run in runs]}"
    order = Order.from_json(ranks[0]["order"])
    first, position = _start(name, len(ranks))
    last, stop = (STOPS | {"again": TWICE}).get(name, (EPOCHS - 1, None))
    for epoch in range(first, last + 1):
        indices = StoredDataSet(path).indices(order.plan(epoch).sample_of).tolist()
        steps = [run["steps"].get(str(epoch), []) for run in runs]
        wrong = _compare(indices[position:], indices, steps, stop if epoch == last else None)
        if wrong:
            return f"WRONG: {name}, epoch {epoch}: {wrong}"
        position = 0
    return "exact"


def _start(name: str, ranks: int) -> tuple[int, int]:
    """Epoch and position at which a run should begin."""
    where, _, writers = name.partition(" of ")
    if writers:
        epoch, steps = STOPS[where]
        return epoch, steps * BATCH * int(writers)
    if name == "again":
        return STOPS["later"][0], STOPS["later"][1] * BATCH * ranks
    if name == "twice":
        return TWICE[0], (STOPS["later"][1] + TWICE[1]) * BATCH * ranks
    return 0, 0


def _compare(rest: list[int], epoch: list[int], steps: list[list[list[int]]], stop: int | None) -> str:
    """What is wrong with the steps of all ranks; the empty string: nothing."""
    if len({len(of_rank) for of_rank in steps}) != 1:
        return f"ranks trained {[len(of_rank) for of_rank in steps]} batches"
    size = BATCH * len(steps)
    expected = -(-len(rest) // size)
    if len(steps[0]) != (expected if stop is None else stop):
        trained = {index for of_rank in steps for batch in of_rank for index in batch}
        return f"{len(steps[0])} steps in place of {expected}, {len(set(rest) - trained)} samples lost"
    for number, batches in enumerate(zip(*steps, strict=True)):
        together = sorted(index for batch in batches for index in batch)
        right = rest[number * size : (number + 1) * size]
        if len(right) == size and together != sorted(right):
            return f"step {number} trained other samples"
        if not set(right) <= set(together) <= set(epoch) or len(together) > size:
            return f"the last step, {number}, trained other samples"
    return ""
