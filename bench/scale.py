"""What does an order cost for a billion samples: time to its first positions, in mid-epoch too, and memory?

Every measurement is made in a process of its own. `first` is the time from the beginning to the samples of the first
1,024 positions of an epoch, `resume` the same for positions in the middle of it, in another process. `next` is the
time for a million positions after these. Memory is what the process has gained at its peak. Chunks have 8,192 samples,
groups 16 chunks, stripes 1,024 samples.

    python -m bench.scale --work SCRATCH --out bench/results/scale.json

Brand plans windows of an epoch: what is needed now. The whole plan is what a data server makes today. `uniform`
computes any positions; in its version 1 it sorted a whole epoch. PyTorch's `DistributedSampler` makes a list of an
epoch in each rank.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from bench import harness
from bench.harness import Outcome, Rival

SAMPLES: Final = (1, 10, 100, 1_000)
"""Million samples."""
BATCH: Final = 1_024
MORE: Final = 1_000_000
MOST_WHOLE: Final = 100
"""Million samples of the largest data set for ways that need memory for all."""
WINDOWS: Final = "Brand, windows"
WHOLE: Final = "Brand, whole plan"
UNIFORM: Final = "Brand, uniform"
SORTED: Final = "Brand, uniform as a sort"
TORCH: Final = "DistributedSampler"
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


def distributed(samples: int, first: int) -> Callable[[int, int], object]:
    """PyTorch's sampler of one rank; the first positions are skipped, as after a restart."""
    from itertools import islice

    from torch.utils.data import DistributedSampler

    sampler: Iterator[int] = iter(DistributedSampler(range(samples), num_replicas=1, rank=0))  # type: ignore[arg-type]
    list(islice(sampler, first, first + BATCH))
    return lambda first, end: list(islice(sampler, end - first))


WAYS: Final = {WINDOWS: windows, WHOLE: whole, UNIFORM: uniform, SORTED: uniform_sorted, TORCH: distributed}


def measured(way: str, samples: int, at: float) -> dict[str, float]:
    """Return seconds and memory of a way, from this share of the epoch on."""
    make = WAYS[way]
    make(BATCH * 100, 0)  # imports, and what numpy makes when it is used for the first time
    first, before = int(samples * at), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    more = make(samples, first)
    found = {"first_s": time.perf_counter() - started, "first_cpu_s": time.process_time() - cpu}
    end = min(samples, first + BATCH + MORE)
    started, cpu = time.perf_counter(), time.process_time()
    more(first + BATCH, end)
    made = end - first - BATCH
    found["next_s"] = (time.perf_counter() - started) * MORE / made
    found["next_cpu_s"] = (time.process_time() - cpu) * MORE / made
    return found | {"bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024}


def rivals() -> list[Rival]:
    """Return each way with each number of samples, from the beginning and from the middle."""
    found = []
    for way in WAYS:
        for million in SAMPLES:
            if way in (WINDOWS, UNIFORM) or million <= MOST_WHOLE:
                needs = "torch" if way == TORCH else ""
                found += [Rival(f"{way}, {million}, {at}", needs, needs) for at in ("first", "resume")]
    return found


def table_of(outcomes: list[Outcome], some: list[Rival]) -> str:
    """Return the medians."""
    of: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        if outcome.status == "ok":
            of.setdefault(outcome.rival, []).append(outcome.values)

    def figure(name: str, key: str, scale: float, digits: int) -> str:
        found = [each[key] for each in of.get(name, []) if key in each]
        return f"{statistics.median(found) * scale:,.{digits}f}" if found else "-"

    rows = []
    for name in dict.fromkeys(rival.name.rpartition(",")[0] for rival in some):
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
    """Measure one way in a fresh process."""
    return harness.run_fresh(rival, "bench.scale", [], arguments.limit)


def main() -> None:
    """Run as parent or child, as `--rival` says."""
    arguments = harness.parser("bench.scale", __doc__, data=False, repeat=3).parse_args()
    if arguments.rival:
        way, million, at = arguments.rival.rsplit(", ", 2)
        found = measured(way, int(million) * 1_000_000, 0.0 if at == "first" else 0.5)
        harness.report(arguments.report, found)
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    some = rivals()
    outcomes = harness.round_robin(some, arguments.repeat, partial(measure, arguments))
    harness.show(table_of(outcomes, some))
    if arguments.out:
        harness.save(arguments.out, __doc__, {"batch": BATCH, "million samples": list(SAMPLES)}, some, outcomes)


if __name__ == "__main__":
    main()
