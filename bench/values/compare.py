"""Is each value that Brand yields after a conversion the value that another tool yields for the same source?

A `Case` has the samples of the other tool, and the command that converts its source. `outcome` converts, reads every
sample, and counts: equal; different and said (the report or the refusal of the conversion has the words that the case
expects for this field); different and silent, which is a fault. Words that are expected for a difference that does not
occur count for nothing.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

import brand

Sample = Mapping[str, Any]
WHOLE: Final = "*"
"""Stands for all fields of a sample in `Case.said`."""
_LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Sound:
    """Audio as a tool decodes it."""

    samples: np.ndarray[Any, Any]
    """float, (channels, frames)."""
    rate: int
    tolerance: float = 0.0
    """Largest difference of a sample that is equal; decoders of MP3 and the like round in other ways."""


@dataclass(frozen=True)
class Case:
    """A source, the samples that another tool yields for it, and its conversion."""

    tool: str
    source: str
    theirs: Callable[[], Sequence[Sample]]
    """Return the other tool's samples, by the names of Brand's fields. Fields that they lack are not compared."""
    command: Sequence[str] = ()
    """Arguments of `brand convert`, without the target; empty if `pack` converts."""
    pack: Callable[[str], Any] | None = None
    """Function that packs into a folder, and returns brand.pack's report."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Field, or `WHOLE` -> the words (a regular expression) with which a difference is said."""
    decode: Any = True
    """The parameter `decode` of `BrandDataset`."""
    second: Callable[[], Sequence[Sample]] | None = None
    """Return the samples of a second tool, which has other values for some: these may be Brand's values, too."""
    transform: Mapping[str, Callable[[Any], Any]] | None = None
    """The parameter `transform` of `BrandDataset`."""
    by: str = ""
    """Field that names the samples, if the tool has another order of samples; a missing sample is a difference."""


@dataclass
class Outcome:
    """The counts of a case."""

    samples: int = 0
    equal: int = 0
    second: int = 0
    """Samples with the second tool's values where the tools differ."""
    said: int = 0
    silent: int = 0
    differences: list[str] = field(default_factory=list)
    """The first difference of each field, in words."""
    words: str = ""
    """The notes and facts in the report of the conversion."""


@dataclass
class _Last:
    """The last conversion, which the next case may have, too."""

    command: tuple[str, ...] = ()
    said: tuple[str, bool] = ("", False)


_last: Final = _Last()


def outcome(case: Case, folder: Path) -> Outcome:
    """Convert, read and compare the samples of a case."""
    target = folder / "converted.brand"
    if not case.command or tuple(case.command) != _last.command:
        shutil.rmtree(target, ignore_errors=True)
        _last.command, _last.said = tuple(case.command), _converted(case, target)
    report, refused = _last.said
    report = report.replace(f"{folder.parent}/", "")
    theirs = list(case.theirs())
    found = Outcome()
    if refused:
        found.samples = len(theirs)
        pattern = case.said.get(WHOLE, "")
        if pattern and re.search(pattern, report, re.MULTILINE):
            found.said, found.words = len(theirs), _line(report, pattern)
        else:
            found.silent = len(theirs)
        found.differences.append(f"refused: {report.strip()[-300:]}")
        return found
    second = list(case.second()) if case.second else [{}] * len(theirs)
    for number, pair in enumerate(_pairs(case, target, theirs)):
        _count(case, pair, second[number] if number < len(second) else {}, report, found)
    return found


def _converted(case: Case, target: Path) -> tuple[str, bool]:
    """Return what the conversion said, and whether it refused."""
    if case.pack is not None:
        try:
            report = case.pack(str(target))
        except brand.BrandError as error:
            return str(error), True
        return "\n".join([*report.notes, *(fact.text for fact in report.noticed), *map(str, report.skipped)]), False
    command = [sys.executable, "-m", "brand", "convert", *case.command[:2], str(target), *case.command[2:], "-j", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if "Traceback" in ended.stderr:
        raise RuntimeError(ended.stderr)
    return ended.stdout + ended.stderr, ended.returncode != 0


def _pairs(case: Case, target: Path, theirs: Sequence[Sample]) -> Iterator[tuple[Sample | None, Sample | None]]:
    ours = brand.BrandDataset(str(target), decode=case.decode, transform=case.transform)
    mine = (ours[index] for index in range(len(ours)))
    if not case.by:
        yield from zip_longest(theirs, mine)
        return
    named = {sample[case.by]: sample for sample in mine}
    yield from ((sample, named.pop(sample[case.by], None)) for sample in theirs)
    yield from ((None, sample) for sample in named.values())


def _count(case: Case, pair: tuple[Sample | None, Sample | None], second: Sample, report: str, found: Outcome) -> None:
    theirs, mine = pair
    found.samples += 1
    if theirs is None or mine is None:
        wrong = {WHOLE: "Brand has no such sample" if mine is None else "only Brand has this sample"}
    else:
        wrong = {
            name: f"{_short(value)} is {_short(mine.get(name))} in Brand"
            for name, value in theirs.items()
            if name not in mine or not same(value, mine[name])
        }
    if not wrong:
        found.equal += 1
        return
    if mine is not None and all(name in second and same(second[name], mine[name]) for name in wrong):
        found.second += 1
        found.differences += [f"{name}: {text}, as in the second tool" for name, text in wrong.items()]
        return
    patterns = {name: case.said.get(name, "") for name in wrong}
    silent = [name for name, pattern in patterns.items() if not pattern or not re.search(pattern, report, re.MULTILINE)]
    found.silent += bool(silent)
    found.said += not silent
    for name, text in wrong.items():
        line = f"{name}: {text}" + (" (SILENT)" if name in silent else "")
        if not any(
            each.startswith(f"{name}: ") and each.endswith("(SILENT)") == (name in silent) for each in found.differences
        ):
            found.differences.append(line)
        if name not in silent and _line(report, patterns[name]) not in found.words:
            found.words = "; ".join(filter(None, [found.words, _line(report, patterns[name])]))


def _line(report: str, pattern: str) -> str:
    return next((line.strip() for line in report.splitlines() if re.search(pattern, line)), "")


def _short(value: Any) -> str:
    if isinstance(value, Image.Image):
        return f"image {value.mode} {value.size}"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.shape} {value.ravel()[:4].tolist()}"
    if isinstance(value, Sound | brand.Waveform):
        return f"sound {value.samples.shape} {value.rate} Hz"
    text = repr(value)
    return text if len(text) <= 70 else text[:67] + "..."


def same(theirs: Any, mine: Any) -> bool:
    """Return whether two values are equal, in their types, too; -0.0 is not 0.0, and nan is nan.

    Brand has text for times and decimals, 0 and 1 for False and True in `int`, and arrays for lists of numbers: these
    are equal to the value that they spell.
    """
    if isinstance(theirs, Image.Image):
        return isinstance(mine, Image.Image) and _pixels(theirs) == _pixels(mine)
    if isinstance(theirs, Sound):
        return (
            isinstance(mine, brand.Waveform)
            and theirs.rate == mine.rate
            and theirs.samples.shape == mine.samples.shape
            and bool(np.all(np.abs(theirs.samples - mine.samples) <= theirs.tolerance))
        )
    if isinstance(theirs, np.ndarray | np.generic) and not isinstance(theirs, float | int | str | bytes):
        return (
            isinstance(mine, np.ndarray | np.generic)
            and theirs.dtype.newbyteorder("=") == mine.dtype
            and theirs.shape == mine.shape
            and theirs.astype(mine.dtype).tobytes() == mine.tobytes()
        )
    if isinstance(theirs, Mapping):
        return (
            isinstance(mine, Mapping) and theirs.keys() == mine.keys() and all(same(theirs[k], mine[k]) for k in theirs)
        )
    if isinstance(theirs, list | tuple) and isinstance(mine, np.ndarray):
        return same(list(theirs), mine.tolist())
    if isinstance(theirs, list | tuple):
        return isinstance(mine, list | tuple) and len(theirs) == len(mine) and all(map(same, theirs, mine))
    if isinstance(theirs, float) and isinstance(mine, float):
        return (math.isnan(theirs) and math.isnan(mine)) or (
            theirs == mine and math.copysign(1, theirs) == math.copysign(1, mine)
        )
    if isinstance(theirs, datetime | date | time):
        spelled: str = theirs.isoformat()
        return isinstance(mine, str) and spelled == mine
    if isinstance(theirs, Decimal):
        return isinstance(mine, str) and str(theirs) == mine
    if isinstance(theirs, bool):
        return type(mine) in (bool, int) and bool(theirs == mine)
    return type(theirs) is type(mine) and bool(theirs == mine)


def _pixels(image: Image.Image) -> tuple[Any, ...]:
    return image.mode, image.size, image.tobytes(), image.getpalette() if image.mode == "P" else None
