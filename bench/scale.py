"""What does an order cost for a billion samples: time to its first positions, in mid-epoch too, and memory?

Every measurement is made in a process of its own. `first` is the time from the beginning to the samples of the first
1,024 positions of an epoch, `resume` the same for positions in the middle of it, in another process. `next` is the
time for a million positions after these. Memory is what the process has gained at its peak. Chunks have 8,192 samples,
groups 16 chunks, stripes 1,024 samples.

    python -m bench.scale --work SCRATCH --out bench/results/scale.json [--ways WAY ...]

Brand plans windows of an epoch: what is needed now. The whole plan is its widest window. `uniform` computes any
positions; in its version 1 it sorted a whole epoch. A subset has a random share of the samples, each with this
probability. An epoch of it is planned in windows; until version 0.2 it was filtered from the whole plan. Its next
million are its positions for a million of the data set. `scale_rivals.py` says what the other libraries do. A way that
needs more than 8 GB for an epoch is not run, and one is ended after `--limit` seconds. Results of ways that are not
measured stay in the file.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench import harness
from bench.harness import Outcome, Rival
from bench.scale_rivals import WAYS as OTHERS
from bench.scale_rivals import Order

if TYPE_CHECKING:
    from brand.orders.base.part import Subset

SAMPLES: Final = (1, 10, 100, 1_000)
"""Million samples."""
BATCH: Final = 1_024
MORE: Final = 1_000_000
MOST_BYTES: Final = 8e9
"""Memory that a way may need."""
WINDOWS: Final = "Brand, windows"
WHOLE: Final = "Brand, whole plan"
SUBSETS: Final = {f"Brand, windows, {share} %": share for share in (90, 1)}
FILTERED: Final = {f"Brand, filtered plan, {share} %": share for share in (90, 1)}
UNIFORM: Final = "Brand, uniform"
SORTED: Final = "Brand, uniform as a sort"
COLUMNS: Final = (
    "way, million samples",
    "first, s",
    "CPU s of it",
    "resume, s",
    "CPU s of that",
    "next million, s",
    "CPU s a million",
    "memory, MB",
    "memory of a resume, MB",
)


def windows(samples: int, first: int) -> Callable[[int, int], object]:
    """Brand's windows; nothing of the epoch is known yet."""
    from brand.orders.base.mapping import Mapping
    from brand.orders.policies.windows import StripeWindows

    made = StripeWindows(Mapping(samples, 8_192, 16), 1_024, 0, 1)
    made.window(first, first + BATCH)
    return made.window


def whole(samples: int, first: int) -> Callable[[int, int], object]:
    """Brand's plan of a whole epoch."""
    from brand.orders.base.mapping import Mapping
    from brand.orders.policies.stripe_policy import plan_stripes

    plan = plan_stripes(Mapping(samples, 8_192, 16), 1_024, 0, 1)
    plan.sample_of[first : first + BATCH].tolist()
    return lambda first, end: plan.sample_of[first:end]


def subset_of(samples: int, percent: int) -> Subset:
    """Return a random subset."""
    from brand.orders.base.part import Subset
    from brand.orders.base.random import blocks

    rng, bits = np.random.default_rng(percent), np.empty(-(-samples // 8), np.uint8)
    for part in blocks(samples):  # each but the last has whole bytes
        mask = rng.random(part.stop - part.start, np.float32) < percent / 100
        bits[part.start // 8 : -(-part.stop // 8)] = np.packbits(mask, bitorder="little")
    return Subset(samples, bits.tobytes())


def windows_of_subset(subset: Subset, samples: int, first: int) -> Callable[[int, int], object]:
    """Brand's windows of a subset."""
    from brand.orders.base.mapping import Mapping
    from brand.orders.policies.windows import StripeWindows

    made = StripeWindows(Mapping(samples, 8_192, 16), 1_024, 0, 1, subset)
    first = first * len(subset) // samples
    made.window(first, min(first + BATCH, made.draws))
    return lambda first, end: made.window(first * len(subset) // samples, end * len(subset) // samples)


def filtered(subset: Subset, samples: int, first: int) -> Callable[[int, int], object]:
    """Brand's plan of a whole epoch, without the samples outside a subset, and the read of each sample."""
    from brand.orders.base.mapping import Mapping
    from brand.orders.base.plan import narrowed, read_of_sample
    from brand.orders.policies.stripe_policy import plan_stripes

    plan = narrowed(plan_stripes(Mapping(samples, 8_192, 16), 1_024, 0, 1), subset.mask)
    read_of_sample(plan)
    plan.sample_of[first : first + BATCH].tolist()
    return lambda first, end: plan.sample_of[first:end]


def uniform(samples: int, first: int) -> Callable[[int, int], object]:
    """Brand's uniform shuffle."""
    from brand.orders.base.mapping import Mapping
    from brand.orders.policies.uniform import UniformWindows

    made = UniformWindows(Mapping(samples, 8_192, 16), 0, 1)
    made.window(first, first + BATCH)
    return made.window


def uniform_sorted(samples: int, first: int) -> Callable[[int, int], object]:
    """Brand's uniform shuffle in its version 1."""
    from brand.orders.base.random import RandomStream, permutation

    order = permutation(samples, 0, RandomStream.ACCESS, 1)
    order[first : first + BATCH].tolist()
    return lambda first, end: order[first:end]


WAYS: Final = {WINDOWS: windows, WHOLE: whole, UNIFORM: uniform, SORTED: uniform_sorted}
NEEDS: Final = {
    **{WINDOWS: 0.0, WHOLE: 4.5, UNIFORM: 0.0, SORTED: 20.0},
    **dict.fromkeys(SUBSETS, 0.0),
    **dict.fromkeys(FILTERED, 52.0),
    **{name: way.bytes_a_sample for name, way in OTHERS.items()},
}
"""Memory of an epoch in bytes a sample, as measured with 100 million samples."""


def opened(way: str, samples: int, work: Path) -> Order:
    """Return what makes an order of a way. Subsets and data sets of other libraries are there before it is measured."""
    if way in SUBSETS:
        return partial(windows_of_subset, subset_of(samples, SUBSETS[way]), samples)
    if way in FILTERED:
        return partial(filtered, subset_of(samples, FILTERED[way]), samples)
    return OTHERS[way].open(samples, work) if way in OTHERS else partial(WAYS[way], samples)


def measured(way: str, samples: int, at: float, work: Path) -> dict[str, float]:
    """Return seconds and memory of a way, from this share of the epoch on."""
    opened(way, BATCH * 100, work)(0)  # imports, and what numpy makes when it is used for the first time
    make = opened(way, samples, work)
    first, before = int(samples * at), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    more = make(first)
    found = {"first_s": time.perf_counter() - started, "first_cpu_s": time.process_time() - cpu}
    end = min(samples, first + BATCH + (OTHERS[way].later if way in OTHERS else MORE))
    started, cpu = time.perf_counter(), time.process_time()
    more(first + BATCH, end)
    made = end - first - BATCH
    found["next_s"] = (time.perf_counter() - started) * MORE / made
    found["next_cpu_s"] = (time.process_time() - cpu) * MORE / made
    return found | {"bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024}


def rivals(ways: Iterable[str]) -> list[Rival]:
    """Return each way with each number of samples, from the beginning and from the middle."""
    found = []
    for way in ways:
        needs = (OTHERS[way].module, OTHERS[way].distribution) if way in OTHERS else ("", "")
        found += [Rival(f"{way}, {million}, {at}", *needs) for million in SAMPLES for at in ("first", "resume")]
    return found


def table_of(outcomes: list[Outcome]) -> str:
    """Return the medians."""
    of: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        if outcome.status == "ok":
            of.setdefault(outcome.rival, []).append(outcome.values)

    def figure(name: str, key: str, scale: float, digits: int) -> str:
        found = [each[key] for each in of.get(name, []) if key in each]
        if found:
            return f"{statistics.median(found) * scale:,.{digits}f}"
        failure = harness.first_failure(outcomes, name)
        return failure.status if failure else "-"

    rows, there = [], {outcome.rival.rpartition(",")[0] for outcome in outcomes}
    for name in (name for way in NEEDS for million in SAMPLES if (name := f"{way}, {million}") in there):
        first, resume = f"{name}, first", f"{name}, resume"
        rows.append(
            [
                name,
                figure(first, "first_s", 1, 3),
                figure(first, "first_cpu_s", 1, 3),
                figure(resume, "first_s", 1, 3),
                figure(resume, "first_cpu_s", 1, 3),
                figure(resume, "next_s", 1, 3),
                figure(resume, "next_cpu_s", 1, 3),
                figure(first, "bytes", 1e-6, 0),
                figure(resume, "bytes", 1e-6, 0),
            ]
        )
    return harness.table(COLUMNS, rows) + harness.failures(outcomes)


def measure(arguments: argparse.Namespace, rival: Rival) -> Outcome:
    """Measure one way in a fresh process, if it does not need too much memory."""
    way, million, _ = rival.name.rsplit(", ", 2)
    needs = NEEDS[way] * int(million) * 1e6
    if needs > MOST_BYTES:
        return Outcome(rival.name, "not run", f"needs about {needs / 1e9:.0f} GB")
    return harness.run_fresh(rival, "bench.scale", [], arguments.limit)


def main() -> None:
    """Run as parent or child, as `--rival` says."""
    parser = harness.parser("bench.scale", __doc__, data=False, repeat=3)
    parser.add_argument("--ways", nargs="+", choices=NEEDS, default=list(NEEDS), help="measure only these")
    parser.set_defaults(limit=120.0)
    arguments = parser.parse_args()
    if arguments.rival:
        way, million, at = arguments.rival.rsplit(", ", 2)
        found = measured(way, int(million) * 1_000_000, 0.0 if at == "first" else 0.5, arguments.work)
        harness.report(arguments.report, found)
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    some = rivals(arguments.ways)
    outcomes = harness.round_robin(some, arguments.repeat, partial(measure, arguments))
    outcomes = harness.kept(arguments.out, without=[rival.name for rival in some]) + outcomes
    harness.show(table_of(outcomes))
    if arguments.out:
        harness.save(arguments.out, __doc__, {"batch": BATCH, "million samples": list(SAMPLES)}, some, outcomes)


if __name__ == "__main__":
    main()
