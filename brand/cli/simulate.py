"""`brand simulate DST`: predict reads and times of a training. With `--job`, `jobs` predicts those of several jobs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click
import numpy as np
from click.core import ParameterSource

from brand.chunker.plan.plan import Layout, chunk_samples
from brand.cli.dataset import DATA_SET
from brand.cli.jobs import JobsQuery, show_jobs
from brand.cli.output import duration, echo, empty_figure, new_table, print_json, save_figure, size
from brand.cli.serve import as_memory
from brand.errors import UsageError, counted
from brand.formats.publish import storage_errors
from brand.node.decide.state.choosing import Placement
from brand.node.setup.memory import check_unit, parse_size
from brand.orders import Slots, StorageOrder, Stripes, Uniform
from brand.orders.baselines import Pool
from brand.orders.policies.registry import OrderOption
from brand.simulate.pace import Machine
from brand.simulate.storages import ASSUMED_STORE, BUILT_IN, DEFAULT, Storage, storage_below, storage_named
from brand.simulate.whatif import (
    MOVES,
    Case,
    Data,
    Planned,
    Prediction,
    Price,
    Servers,
    answer,
    answer_mixture,
    data_of,
    imagine,
)
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.weighting import BALANCED

if TYPE_CHECKING:
    from rich.table import Table  # imported where it is used: it takes longer than all other verbs need to start

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])
_MOST_ROWS: Final = 100
_WIDTH: Final = 240
"""Width for all columns: a narrow terminal wraps lines, which is easier to read than wrapped cells."""
_ASSUMED: Final = f"{DEFAULT} (assumed)"
_OF_JOBS: Final = frozenset(
    (
        "dst",
        "samples",
        "mean_bytes",
        "memory",
        "epochs",
        "decode",
        "job",
        "decoded_memory",
        "policies",
        "plot",
        "as_json",
    )
)
"""Options that `--job` accepts."""
_UNSAID: Final = {"chosen", "0", "connected", "auto"}
"""Values of options that are not used."""
_NEAR: Final = 1.05
"""Memories whose epochs take at most this many times the training time count as enough."""


@dataclass(frozen=True, slots=True)
class _CaseRow:
    """One case, the user's name for each of its values, and the prediction."""

    case: Case
    named: dict[str, str]
    answer: Prediction


def _several(name: str, meaning: str) -> Callable[[_F], _F]:
    return click.option(f"--{name}", metavar="A,B,...", help=meaning)


@click.command()
@click.argument("dst", type=DATA_SET, required=False)
@_several("memory", "Memory of a node: 16GB, or a share of the data such as 0.25. Default: 0.25.")
@_several("cache", "Room of a cache folder in each node: 100GB, a share of the data, or 0. Default: 0.")
@_several("storage", f"{', '.join(BUILT_IN)}, MB/s, MB/s:operations/s, or a stored profile. Default: as measured.")
@_several("placement", "Samples of the cache folder: auto, even, next or frequency. Default: auto.")
@click.option("--cache-storage", default="nvme", show_default=True, help="Storage of the cache folder, as --storage.")
@_several("order", "stripes, slots, uniform, storage, or a baseline: pool:8 (chunks of a pool). Default: stripes.")
@_several("stripe", "Samples of a stripe. Default: as Brand chooses for the storage.")
@_several("nodes", "Nodes that train together. Default: 1.")
@_several("servers", "Servers of the nodes: connected, or alone (each reads what its ranks fetch). Default: connected.")
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="Ranks of each node.")
@click.option(
    "--replication",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Ranks of a group that fetches the same samples (tensor parallelism).",
)
@click.option("--batch", type=click.IntRange(1), default=256, show_default=True, help="Samples of a rank's batch.")
@click.option("--epochs", type=click.IntRange(2), default=3, show_default=True, help="Epochs to simulate.")
@click.option("--subset", metavar="EXPRESSION", help='With DST: samples to fetch, such as "label < 10".')
@click.option("--weights", metavar="WEIGHTS", help="With DST: balanced, FILE.npy, or weights of classes: cat=3,dog=1.")
@click.option("--num-samples", type=click.IntRange(1), help="With --weights or --member: samples of an epoch.")
@click.option(
    "--length", metavar="LENGTH", help="With DST: plan batches from this field, or from FILE.npy with all lengths."
)
@click.option("--batch-length", type=click.FloatRange(0, min_open=True), help="With --length: length of a batch.")
@click.option("--tokens-per-row", type=click.IntRange(1), help="With --length: pack rows of this many tokens.")
@click.option("--rows-per-batch", type=click.IntRange(1), help="With --tokens-per-row: rows of a batch.")
@click.option("--member", metavar="PATH=WEIGHT", multiple=True, help="A member of a Mixture, in place of DST.")
@click.option("--train", type=click.FloatRange(0, min_open=True), help="Samples that one rank trains in a second.")
@click.option("--decode", type=click.FloatRange(0), default=0.0, help="Milliseconds that one thread decodes a sample.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of a node that decode.")
@click.option(
    "--network",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Gbit/s of each node's link.",
)
@click.option("--price-reads", type=click.FloatRange(0), default=0.0, help="Price of 1,000 reads.")
@click.option("--price-gb", type=click.FloatRange(0), default=0.0, help="Price of reading 1 GB.")
@click.option("--price-hour", type=click.FloatRange(0), default=0.0, help="Price of an hour of one node.")
@click.option("--samples", type=click.IntRange(1), help="Without DST: samples of a data set that is not there yet.")
@click.option("--mean-bytes", metavar="SIZE", help="Without DST: mean stored size of a sample, such as 110kB.")
@click.option("--sigma", metavar="SIZE", help="Without DST: standard deviation of the sizes. Default: all are equal.")
@click.option("--job", metavar="JOB", multiple=True, help="One of several jobs that share a server: see below.")
@click.option(
    "--decoded-memory", metavar="SIZE:SIZE", help="With --job: memory for decoded samples, and the size of one."
)
@click.option("--policies", metavar="A,B,...", help="Policies of the jobs. Default: see below.")
@click.option("--plot", metavar="FILE", type=click.Path(path_type=Path), help="Plot the result: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def simulate(
    dst: Path | None,
    job: tuple[str, ...],
    policies: str | None,
    plot: Path | None,
    as_json: bool,  # noqa: FBT001 - click passes options by name
    **given: Any,
) -> None:
    """Predict the time, reads, bytes and cost of an epoch of DST.

    The simulator makes the decisions of a data server, with the real plan and the real sizes. Only the time is a model.
    Several values of an option, separated by commas, make a row each.

    With --subset or --weights, it predicts the epochs of BrandSampler(subset=..., weights=..., num_samples=...). With
    --length, it predicts those of a LengthBatchSampler, or, with --tokens-per-row, of a PackedBatchSampler. With
    --member, given once for each member, it predicts those of a Mixture.

    With --job, given once for each of several jobs that share a server, the command predicts their reads together. A
    JOB is its relative speed, or 1500/s samples per second; then ,start=0.5 epochs of the fastest job, ,subset=0.1 of
    the samples, ,epochs=3. The --policies are follow, joader, coordl and alone; the default is follow,alone.
    """
    if job:
        _check_alone()
        data = _data(dst, given["samples"], given["mean_bytes"], None)
        data = replace(data, facts=replace(data.facts, read_bytes=_default_storage(dst)[1].stripe_bytes))
        show_jobs(data, _of_jobs(job, policies, given), plot, as_json=as_json)
        return
    if policies is not None or given["decoded_memory"] is not None:
        raise UsageError("--policies and --decoded-memory belong to jobs: give --job, too")
    figure = empty_figure(plot) if plot else None
    _check_draws(dst, given)
    price = Price(given["price_reads"], given["price_gb"], given["price_hour"])
    if given["member"]:
        members = [_member(each) for each in given["member"]]
        every = [data for data, _ in members]
        cases = _cases(given["member"][0].rpartition("=")[0], given, None)
        rows = [_CaseRow(case, named, answer_mixture(members, case)) for case, named in cases]
    else:
        data = _data(dst, given["samples"], given["mean_bytes"], given["sigma"])
        every = [data]
        rows = [
            _CaseRow(case, named, answer(data, case))
            for case, named in _cases(dst, given, _weights(given["weights"], data))
        ]
    samples, stored_bytes = sum(data.samples for data in every), sum(data.stored_bytes for data in every)
    if as_json:
        facts = [_facts(row, price) for row in rows]
        print_json({"samples": samples, "stored_bytes": stored_bytes, "rows": facts})
    else:
        _show(samples, stored_bytes, rows, price)
    if plot and figure:
        _draw(rows, figure)
        save_figure(figure, plot)
        if not as_json:
            echo(f"The plot of the epochs is in {plot}")


def _check_alone() -> None:
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in _OF_JOBS and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            what = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
            raise UsageError(f"--job has no use for it: leave out {what}")


# -- what is asked -----------------------------------------------------------------------------------------------------


def _data(dst: Path | str | None, samples: int | None, mean_bytes: str | None, sigma: str | None) -> Data:
    if dst is not None:
        if samples or mean_bytes or sigma:
            raise UsageError("--samples, --mean-bytes and --sigma describe a data set that is not there: leave out DST")
        return data_of(StoredDataSet(dst))
    if not samples or not mean_bytes:
        raise UsageError("give a data set, or describe one that is not there yet: --samples 1000000 --mean-bytes 110kB")
    mean, spread = _size("--mean-bytes", mean_bytes), 0 if sigma is None else _size("--sigma", sigma)
    return imagine(samples, mean, spread, chunk_samples(samples, samples * mean, Layout()))


def _size(option: str, text: str) -> int:
    try:
        return max(1, parse_size(text))
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def _of_jobs(jobs: tuple[str, ...], policies: str | None, given: dict[str, Any]) -> JobsQuery:
    memories = _values("memory", given, "0.25", _memory)
    chosen = "follow,alone" if policies is None else policies
    return JobsQuery(jobs, chosen, memories, given["decoded_memory"], given["decode"] / 1000, given["epochs"])


def _check_draws(dst: Path | str | None, given: dict[str, Any]) -> None:
    """Raise `UsageError` if the simulator cannot know the fetches of a subset or of weights."""
    used = [f"--{name}" for name in ("member", "length", "weights", "subset") if given[name]]
    described = (dst, given["samples"], given["mean_bytes"], given["sigma"])
    if given["num_samples"] and not (given["weights"] or given["member"]):
        raise UsageError("--num-samples belongs to weights and mixtures: give --weights or --member, too")
    if given["member"] and (used[1:] or any(described)):
        raise UsageError(f"--member names the data sets of a Mixture: leave out {(*used[1:], 'DST and --samples')[0]}")
    if given["length"] and given["weights"]:
        raise UsageError("--length: batches that are planned from lengths take no weights: leave out --weights")
    for name in ("batch_length", "tokens_per_row", "rows_per_batch"):
        if given[name] and not given["length"]:
            raise UsageError(f"--{name.replace('_', '-')} belongs to lengths: give --length, too")
    row = given["tokens_per_row"]
    if bool(row) != bool(given["rows_per_batch"]) or (row and given["batch_length"]):
        raise UsageError("packed rows need --tokens-per-row and --rows-per-batch, and have no --batch-length")
    if used and not given["member"] and dst is None:
        raise UsageError(f"{used[0]} needs the columns of a data set: give one in place of --samples and --mean-bytes")
    for name, one in ("servers", "connected"), ("cache", "0"):
        if used and (given[name] or one) != one:
            raise UsageError(
                f"{used[0]} is simulated for servers that are connected and have no cache folder: leave out --{name}"
            )


def _member(text: str) -> tuple[Data, float]:
    """Return a member of a mixture, and its weight."""
    path, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = -1.0
    if not path or not 0 <= weight < math.inf:
        raise UsageError(f"--member {text}: give the path of a data set and its weight, as in train.brand=0.7")
    return data_of(StoredDataSet(path)), weight


def _planned(given: dict[str, Any]) -> Planned | None:
    """Return the batches that are planned from lengths. A limit of `--batch` samples holds if there is no other."""
    length, most, row = given["length"], given["batch_length"], given["tokens_per_row"]
    if length is None:
        return None
    alone = click.get_current_context().get_parameter_source("batch") is ParameterSource.DEFAULT
    size = None if row or (most and alone) else given["batch"]
    length = _numbers("--length", length) if length.endswith(".npy") else length
    return Planned(length, size, most, row, given["rows_per_batch"])


def _numbers(option: str, text: str) -> Any:
    """Return the array of a file. Raises `UsageError`."""
    try:
        with storage_errors(Path(text), "cannot read"):
            return np.load(text)
    except ValueError:
        raise UsageError(f"{option} {text}: this is no file of NumPy with a number for each sample") from None


def _weights(text: str | None, data: Data) -> Any:
    """Return weights as a `BrandSampler` takes them."""
    if text is None or text == BALANCED:
        return text
    if text.endswith(".npy"):
        return _numbers("--weights", text)
    found, classes = dict[str | int, float](), (data.stored and data.stored.classes) or []
    for each in text.split(","):
        name, _, weight = each.strip().rpartition("=")
        try:
            found[int(name) if name.isdecimal() and name not in classes else name] = float(weight)
        except ValueError:
            raise UsageError(
                f"--weights {text}: give {BALANCED}, a file FILE.npy with a number for each sample, or a number for "
                "each class as in cat=3,dog=1"
            ) from None
    return found


def _cases(dst: Path | str | None, given: dict[str, Any], weights: Any) -> list[tuple[Case, dict[str, str]]]:
    memories = _values("memory", given, "0.25", _memory)
    caches = _values("cache", given, "0", _cache)
    storages = _values("storage", given, None, lambda text: storage_named(text, "--storage")) or [_default_storage(dst)]
    cache_storage = storage_named(given["cache_storage"], "--cache-storage")
    protocols = _values("order", given, "stripes", _protocol)
    stripes: list[tuple[str, int | None]] = [*_values("stripe", given, None, _whole("stripe"))] or [("chosen", None)]
    nodes = _values("nodes", given, "1", _whole("nodes"))
    servers: list[tuple[str, Servers]] = _values("servers", given, "connected", _one_of("servers", get_args(Servers)))
    placements: list[tuple[str, Placement]]
    placements = _values("placement", given, "auto", _one_of("placement", get_args(Placement)))
    if given["placement"] and not any(cache for _, cache in caches):
        raise UsageError("--placement belongs to a cache folder: give --cache, too")
    if given["servers"] and all(count == 1 for _, count in nodes):
        raise UsageError("--servers belongs to several nodes: give --nodes, too")
    choices = memories, caches, storages, protocols, stripes, nodes, servers, placements
    if math.prod(len(each) for each in choices) > _MOST_ROWS:
        raise UsageError(f"that makes more than {_MOST_ROWS} rows: give fewer values")
    cases, planned = [], _planned(given)
    for memory, cache, storage, order, stripe, count, server, placement in itertools.product(*choices):
        chosen: OrderOption = order[1]
        if stripe[1] is not None:
            if not isinstance(chosen, Stripes):
                raise UsageError(f"--stripe belongs to order stripes: leave it out, or leave out {order[0]}")
            chosen = Stripes(length=stripe[1])
        network, train = given["network"] * 1e9 / 8, given["train"] or math.inf
        machine = Machine(storage[1], cache_storage, network, train, given["decode"] / 1000, given["threads"])
        same = {name: given[name] for name in ("ranks", "replication", "batch", "epochs")}
        same |= {"nodes": count[1], "servers": server[1], "placement": placement[1]}
        same |= {"subset": given["subset"], "weights": weights, "num_samples": given["num_samples"]}
        same |= {"planned": planned}
        case = Case(machine, memory[1], cache=cache[1], order=chosen, **same)
        named = {"memory": memory, "cache": cache, "storage": storage, "order": order}
        named |= {"stripe": stripe, "nodes": count, "servers": server, "placement": placement}
        drawn = {name: given[name] for name in ("subset", "weights", "length") if given[name] is not None}
        drawn |= {"mixture": " ".join(given["member"])} if given["member"] else {}
        cases.append((case, {name: each[0] for name, each in named.items()} | drawn))
    return cases


def _values(name: str, given: dict[str, Any], default: str | None, parse: Callable[[str], _T]) -> list[tuple[str, _T]]:
    text = given[name] or default
    return [] if text is None else [(each.strip(), parse(each.strip())) for each in text.split(",")]


def _default_storage(dst: Path | str | None) -> tuple[str, Storage]:
    found = None if dst is None else storage_below(dst)
    return (_ASSUMED, BUILT_IN[DEFAULT]) if found is None else (found.name, found)


def _memory(text: str) -> str | float:
    return _size_or_share("--memory", text)


def _cache(text: str) -> str | float | None:
    return None if text == "0" else _size_or_share("--cache", text)


def _size_or_share(option: str, text: str) -> str | float:
    check_unit(text, f"{option} {text}")
    found = as_memory(text)
    if isinstance(found, str):
        _size(option, found)
    elif found is None or not 0 < found <= 1:
        raise UsageError(f"{option} {text}: give a size such as 16GB, or a share of the data above 0 and at most 1")
    return found


def _protocol(text: str) -> OrderOption:
    name, colon, chunks = text.partition(":")
    if name == "pool" and chunks.isdecimal() and int(chunks):
        return Pool(int(chunks))
    known: dict[str, OrderOption] = {
        "stripes": Stripes(),
        "slots": Slots(),
        "uniform": Uniform(),
        "storage": StorageOrder(),
    }
    if name not in known or colon:
        raise UsageError(f"--order {text}: give stripes, slots, uniform, storage, or pool:8 for pools of 8 chunks")
    return known[name]


def _one_of(name: str, known: tuple[_T, ...]) -> Callable[[str], _T]:
    def parse(text: str) -> _T:
        if text not in known:
            raise UsageError(f"--{name} {text}: give {', '.join(map(str, known[:-1]))} or {known[-1]}")
        return known[known.index(text)]

    return parse


def _whole(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not int(text):
            raise UsageError(f"--{name} {text}: give a whole number, 1 or more")
        return int(text)

    return parse


# -- what is answered --------------------------------------------------------------------------------------------------


def _facts(row: _CaseRow, price: Price) -> dict[str, Any]:
    found = row.answer
    return {
        **row.named,
        "order": found.order.to_json(),
        "memory_bytes": found.memory_bytes,
        "kept_bytes": found.kept_bytes,
        "cached_bytes": found.cached_bytes,
        "epochs": [
            asdict(counts) | asdict(pace) | {"waits": pace.waits, "sets_the_pace": pace.sets_the_pace}
            for counts, pace in zip(found.counts, found.paces, strict=True)
        ],
        "later_epoch_s": found.later.seconds,
        "price": found.cost(price, row.case.nodes) if price.known else None,
    }


def _show(samples: int, stored_bytes: int, rows: list[_CaseRow], price: Price) -> None:
    from rich.console import Console

    first = rows[0]
    varying = [name for name in first.named if len({row.named[name] for row in rows}) > 1]
    fixed = [f"{name} {value}" for name, value in first.named.items() if name not in varying and value not in _UNSAID]
    echo(f"{counted(samples, 'sample')}, {size(stored_bytes)}; {', '.join(fixed)}")
    if first.case.machine.train_per_s < math.inf:
        echo(f"Training alone takes {duration(first.answer.later.training)} an epoch")
    Console(highlight=False, width=_WIDTH).print(_table(rows, varying, price))
    for sentence in _sentences(rows, varying):
        echo(sentence)


def _table(rows: list[_CaseRow], varying: list[str], price: Price) -> Table:
    table = new_table(header=True)
    waits = rows[0].case.machine.train_per_s < math.inf
    several, caches = any(row.case.nodes > 1 for row in rows), any(row.case.cache for row in rows)
    names = [*varying, "epoch 1", "later", *(["waits"] if waits else []), "cached", "read", "reads", "direct"]
    names += ["from cache"] if caches else []
    names += [*(["between nodes"] if several else []), *(["price"] if price.known else []), "sets the pace"]
    for name in names:
        table.add_column(name, justify="left" if name == "sets the pace" else "right")
    for row in rows:
        found, counts = row.answer, row.answer.later_counts
        cells = [row.named[name] for name in varying]
        cells += [duration(found.paces[0].seconds), duration(found.later.seconds)]
        cells += [f"{found.later.waits:.0%}"] if waits else []
        cells += [size(found.kept_bytes), size(counts.read_bytes), f"{counts.reads:,}", f"{counts.direct:,}"]
        cells += [size(counts.cache_bytes)] if caches else []
        cells += [size(counts.sent_bytes)] if several else []
        cells += [f"{found.cost(price, row.case.nodes):,.2f}"] if price.known else []
        table.add_row(*cells, found.later.sets_the_pace)
    return table


def _sentences(rows: list[_CaseRow], varying: list[str]) -> list[str]:
    first, said = rows[0], []
    good = [row for row in rows if row.answer.later.seconds <= _NEAR * row.answer.later.training]
    if first.case.machine.train_per_s < math.inf and 0 < len(good) < len(rows):
        which = ", ".join(f"{name} {good[0].named[name]}" for name in varying)
        over = max(0.0, good[0].answer.later.seconds / good[0].answer.later.training - 1)
        said.append(f"With {which} later epochs come within {over:.0%} of training alone")
    if any(row.case.cache and not row.answer.cached_bytes for row in rows):
        said.append("A cache folder that is no faster than the storage, or has no room for a stripe, is not used")
    if any(row.case.servers == "connected" and row.case.nodes > 1 and row.named["placement"] in MOVES for row in rows):
        said.append("The cache folders of connected servers use the placement even")
    if first.named["storage"] in (_ASSUMED, ASSUMED_STORE):
        said.append("The storage was not measured (`brand profile`): --storage says which it is")
    return said


def _draw(rows: list[_CaseRow], figure: Any) -> None:
    varying = [name for name in rows[0].named if len({row.named[name] for row in rows}) > 1]
    names = ["\n".join(row.named[name] for name in varying) or "later epochs" for row in rows]
    axes, at = figure.subplots(), range(len(rows))
    for part in ("training", "storage", "cache", "network", "decoding"):
        minutes = [getattr(row.answer.later, part) / 60 for row in rows]
        if any(minutes):
            axes.plot(at, minutes, marker="o", label=f"{part} alone")
    axes.bar(at, [row.answer.later.seconds / 60 for row in rows], color="lightgray", label="later epochs")
    axes.plot(at, [row.answer.paces[0].seconds / 60 for row in rows], "k_", markersize=18, label="first epoch")
    axes.set_xticks(at, names)
    axes.set(xlabel=", ".join(varying), ylabel="minutes an epoch", ylim=(0, None))
    axes.legend()
