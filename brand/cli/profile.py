"""`brand profile PATH`: measure the speed of a storage, and keep the profile."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from brand.cli.dataset import DATA_SET
from brand.cli.output import Meter, echo, empty_figure, meter, new_table, print_json, save_figure, size
from brand.errors import counted
from brand.formats.constants import MANIFEST_NAME
from brand.formats.manifest import read_manifest
from brand.storage.io.location import located
from brand.storage.profile.probe import SECONDS, STORE_SECONDS, Measurement, Report, StoreProbe, take_measurement
from brand.storage.profile.profile import ENOUGH, Profile, best_depth, save_profile, stripe_bytes, stripe_length
from brand.stores.url import parse_url

if TYPE_CHECKING:
    from rich.table import Table  # imported where it is used: it takes longer than all other verbs need to start

_BAR: Final = 48


@click.command()
@click.argument("path", type=DATA_SET)
@click.option(
    "--seconds", type=click.FloatRange(min=1), help=f"Time to take. Default: {SECONDS:g}, {STORE_SECONDS:g} in a store."
)
@click.option("--plot", metavar="FILE", type=click.Path(path_type=Path), help="Plot the curves: .png, .svg or .pdf.")
@click.option("--dry-run", is_flag=True, help="Measure, and store nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def profile(path: Path | str, seconds: float | None, plot: Path | None, dry_run: bool, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Measure the bandwidth of the storage below PATH.

    PATH is a data set, a folder or a large file. The command drops its files from the page cache and reads them in
    random blocks, by read size and reads in flight. The result fixes the length of a stripe, and is stored for this
    storage.

    PATH may be the URL of a data set in an object store. The command then prints the highest cost first: requests and
    bytes.
    """
    figure = empty_figure(plot) if plot else None
    samples, measure = _in_store(path, quiet=as_json) if isinstance(path, str) else _in_files(path)
    with meter(quiet=as_json) as show:
        measured = measure(seconds, _seconds(show))
    if as_json:
        print_json(_facts(path, measured, samples, None if dry_run else save_profile(measured.profile)))
    else:
        _show(path, measured, samples)
        stored = None if dry_run else save_profile(measured.profile)
        echo(f"Stored for {measured.profile.device} in {stored}" if stored else "Nothing was stored (--dry-run)")
    if plot and figure:
        _draw(measured.profile, figure)
        save_figure(figure, plot)
        if not as_json:
            echo(f"The curves are plotted in {plot}")


_Measure = Callable[[float | None, Report], Measurement]
"""Measures for a number of seconds, and reports its progress."""


def _in_store(url: str, *, quiet: bool) -> tuple[_Samples | None, _Measure]:
    location = located(url)
    samples, probe = _samples(location.local), StoreProbe(location)
    if not quiet:
        most = f"{counted(probe.requests, 'request')} and {size(probe.bytes)}"
        echo(f"This asks {parse_url(url).root} for at most {most}", err=True)
    return samples, lambda seconds, report: probe.measure(seconds=seconds or STORE_SECONDS, report=report)


def _in_files(path: Path) -> tuple[_Samples | None, _Measure]:
    samples = _samples(path)
    return samples, lambda seconds, report: take_measurement(path, seconds=seconds or SECONDS, report=report)


class _Samples(NamedTuple):
    """The facts of a data set that the length of a stripe depends on."""

    mean_bytes: float
    chunk_size: int

    def stripe(self, found: Profile) -> int:
        return stripe_length(stripe_bytes(found), self.mean_bytes, self.chunk_size)


def _samples(path: Path) -> _Samples | None:
    if not (path / MANIFEST_NAME).is_file():
        return None
    manifest = read_manifest(path)
    return _Samples(manifest.mean_bytes, manifest.header.chunk_size)


def _seconds(show: Meter) -> Report:
    def report(gone: float, planned: float, read_bytes: int) -> None:
        total = math.ceil(planned)
        show("second", total if gone >= planned else min(int(gone), total - 1), total, read_bytes, None)

    return report


def _facts(path: Path | str, measured: Measurement, samples: _Samples | None, stored: Path | None) -> dict[str, Any]:
    found = measured.profile
    return {
        "path": str(path),
        **found.to_json(),
        "best_depth": best_depth(found),
        "stripe_bytes": stripe_bytes(found),
        "mean_sample_bytes": samples and samples.mean_bytes,
        "stripe_length": samples and samples.stripe(found),
        "seconds": measured.seconds,
        "reads": measured.reads,
        "read_bytes": measured.read_bytes,
        "file_bytes": measured.file_bytes,
        "cached_bytes": measured.cached_bytes,
        "stored": stored and str(stored),
    }


def _show(path: Path | str, measured: Measurement, samples: _Samples | None) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(_table(measured.profile))
    console.print(_curve(measured.profile))
    for sentence in _sentences(path, measured, samples):
        echo(sentence)


def _table(found: Profile) -> Table:
    table = new_table("MB/s by read size and reads in flight", header=True)
    table.add_column("read size", justify="right")
    for depth in found.depths:
        table.add_column(f"{depth}", justify="right")
    for length, speeds in zip(found.sizes, zip(*found.bytes_per_s, strict=True), strict=True):
        table.add_row(_binary(length), *(_speed(speed) if speed else "-" for speed in speeds))
    return table


def _curve(found: Profile) -> Table:
    """Draw a bar for each read size, at the best number of reads in flight. A line marks the target speed."""
    depth = best_depth(found)
    speeds = found.bytes_per_s[found.depths.index(depth)]
    target = ENOUGH * found.sequential
    title = f"\nWith {depth} in flight; the line is {100 * ENOUGH:.0f} % of sequential, {_speed(target)} MB/s"
    table = new_table(title)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    scale = _BAR / max(*speeds, found.sequential)
    for length, speed in zip(found.sizes, speeds, strict=True):
        if speed:
            style = "green" if speed >= target else ""
            table.add_row(
                _binary(length), _speed(speed), _bar(round(speed * scale), round(target * scale)), style=style
            )
    return table


def _bar(length: int, line: int) -> str:
    return "█" * min(length, line) + " " * (line - length) + "│" + "█" * (length - line)


def _sentences(path: Path | str, measured: Measurement, samples: _Samples | None) -> list[str]:
    found = measured.profile
    told = [
        "",
        f"Sequential {_speed(found.sequential)} MB/s; {100 * ENOUGH:.0f} % of it from reads of"
        f" {_binary(stripe_bytes(found))} with {best_depth(found)} in flight",
    ]
    if samples is not None:
        stripe = samples.stripe(found)
        most = " (a quarter of a chunk is the most)" if stripe * samples.mean_bytes < stripe_bytes(found) else ""
        told.append(
            f"Data set {path} (mean sample {size(samples.mean_bytes)}): stripes of {counted(stripe, 'sample')}{most}"
        )
    if isinstance(path, str):
        told.append(f"It took {counted(measured.reads, 'request')} and {size(measured.read_bytes)}")
    over = measured.read_bytes / measured.file_bytes
    if over > 1:
        told.append(
            f"The {size(measured.file_bytes)} of its files were read {over:.1f} times over: if the storage has a cache"
            " of its own, this is the speed of that cache, and larger files tell more"
        )
    if measured.cached_bytes:
        told.append(f"{size(measured.cached_bytes)} were left out: the page cache did not let go of them")
    return told


def _draw(found: Profile, figure: Any) -> None:
    axes = figure.subplots()
    for depth, speeds in zip(found.depths, found.bytes_per_s, strict=True):
        points = [(length, speed / 1e6) for length, speed in zip(found.sizes, speeds, strict=True) if speed]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=f"{depth} in flight")
    axes.axhline(ENOUGH * found.sequential / 1e6, color="gray", linestyle="--", label=f"{ENOUGH:.0%} of sequential")
    axes.axvline(stripe_bytes(found), color="gray", linestyle=":", label=f"stripe: {_binary(stripe_bytes(found))}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(found.sizes, [_binary(length) for length in found.sizes])
    axes.set(title=found.device, xlabel="read size", ylabel="MB/s", ylim=(0, None))
    axes.legend()


def _binary(count: int) -> str:
    if round(count / 1024) < 1024:
        return f"{count / 1024:.0f} KiB"
    return f"{count / (1 << 20):.1f} MiB".replace(".0 ", " ")


def _speed(bytes_per_s: float) -> str:
    """Format MB/s with three digits or more."""
    return f"{bytes_per_s / 1e6:,.{0 if bytes_per_s >= 1e8 else 1}f}"
