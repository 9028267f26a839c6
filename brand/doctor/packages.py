"""Which packages are installed, and which features lack a package?

    metadata of brand-data -> requirements of each extra -> versions found -> imports tried -> findings

The list of extras is read from the metadata of the installed distribution, so it cannot differ from what pip installs.
Versions are read from metadata as well. The packages in `MODULES` have compiled parts, which can be installed and still
not load, so a child process imports them, and a package that crashes does not end `brand doctor`. `parse`, `at_least`
and `judge` are pure.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final, Literal, NamedTuple

import brand
from brand.errors import counted
from brand.pythonchild import child_command

State = Literal["ok", "missing", "problem"]
"""`missing`: an optional package is not installed, and Brand works without it. `problem`: something does not work."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    part: str
    """The heading in the report: `installed`, `system`, `limits`, `data set`, `self-test`."""
    name: str
    state: State
    told: str
    """The result, in a sentence or less."""
    cure: str = ""
    """The next step; empty if there is none."""
    seconds: float | None = None
    """Duration of a step of the self-test; None for all other checks."""


NO_TEMPORARY: Final = "set TMPDIR to a folder that can be written, such as a tmpfs or an emptyDir"
"""The next step if this process can write to no folder of temporary files."""
DISTRIBUTION: Final = "brand-data"
_PART: Final = "installed"
PURPOSES: Final = {
    "train": "training with PyTorch",
    "audio": "decoding audio",
    "av": "decoding audio that libsndfile does not open, such as MP4",
    "cloud": "data sets in S3, Google Cloud Storage, Azure and on web servers",
    "parquet": "conversion of Parquet files",
    "hf": "conversion of Hugging Face data sets",
    "ray": "conversion on a Ray cluster",
    "frameworks": "Lightning, Accelerate and the Hugging Face Trainer",
    "tools": "`brand profile --plot` and brand.testing.shuffling",
}
"""Purpose of each extra. An extra that is not here is shown without its purpose."""
DEVELOPERS: Final = frozenset({"dev", "docs"})
"""Extras that only developers of Brand need."""
MODULES: Final = {
    "numpy": "numpy",
    "zstandard": "zstandard",
    "pillow": "PIL.Image",
    "xxhash": "xxhash",
    "grpcio": "grpc",
    "torch": "torch",
    "simplejpeg": "simplejpeg",
    "soundfile": "soundfile",
    "soxr": "soxr",
    "av": "av",
    "obstore": "obstore",
}
"""Modules to import of packages with compiled parts."""
LIMIT_S: Final = 120.0
"""Maximum time of all imports: a cold network drive needs a minute for PyTorch."""

_REQUIREMENT: Final = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?\s*(?P<versions>[^;]*)")
_LEAST: Final = re.compile(r">=\s*(\d+(?:\.\d+)*)")
_EXTRA: Final = re.compile(r"extra\s*==\s*[\"']([\w.-]+)[\"']")
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)*")

OnImport = Callable[[int, int], None]
"""Receives the number of packages that have been imported, and the number of all packages."""


class Requirement(NamedTuple):
    """One package that Brand or one of its extras needs."""

    name: str
    """The distribution, in lower case with hyphens."""
    least: str
    """The oldest sufficient version; empty: any."""
    extra: str
    """The extra that needs it; empty: Brand itself."""


def parse(line: str) -> Requirement | None:
    """Parse a requirement of the metadata (`torch>=2.3; extra == "train"`); None if the line is not one. Pure."""
    before, _, marker = line.partition(";")
    match = _REQUIREMENT.match(before.strip())
    if match is None:
        return None
    least, extra = _LEAST.search(match["versions"]), _EXTRA.search(marker)
    name = re.sub(r"[-_.]+", "-", match["name"]).lower()
    return Requirement(name, least[1] if least else "", extra[1] if extra else "")


def at_least(version: str, least: str) -> bool:
    """Return whether a version is `least` or newer, by its numbers: `2.13.0+cpu` is newer than `2.3`. Pure."""
    return _numbers(version) >= _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at its end: 2.3.0 is 2.3."""
    match = _NUMBERS.match(version)
    numbers = [int(number) for number in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def judge(
    needed: Sequence[Requirement], versions: Mapping[str, str], faults: Mapping[str, str]
) -> Iterable[CheckResult]:
    """Yield a result for Brand itself and for each extra, from installed `versions` and import `faults`. Pure."""
    order = ["", *PURPOSES]
    extras = dict.fromkeys(each.extra for each in needed if each.extra not in DEVELOPERS)
    for extra in sorted(extras, key=lambda name: order.index(name) if name in order else len(order)):
        members = [each for each in needed if each.extra == extra and each.name != DISTRIBUTION]
        if members:
            yield _of_extra(extra, members, versions, faults)


def _of_extra(
    extra: str, members: Sequence[Requirement], versions: Mapping[str, str], faults: Mapping[str, str]
) -> CheckResult:
    name = extra or "core"
    absent = [each.name for each in members if each.name not in versions]
    old = [each for each in members if each.name in versions and not at_least(versions[each.name], each.least)]
    broken = [each for each in members if each.name in faults]
    if broken:
        first = broken[0]
        told = f"{first.name} {versions[first.name]} is installed but cannot be imported: {faults[first.name]}"
        install = f"pip install --force-reinstall '{_spec(first)}'"
        cure = NO_TEMPORARY if "temporary directory" in faults[first.name] else install
        return CheckResult(_PART, name, "problem", told, cure)
    if old:
        told = ", ".join(f"{each.name} {versions[each.name]} is older than {each.least}" for each in old)
        wanted = " ".join(f"'{_spec(each)}'" for each in old)
        return CheckResult(_PART, name, "problem", told, f"pip install --upgrade {wanted}")
    if absent:
        target = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
        what = PURPOSES.get(extra, "")
        told = f"{_listed(absent)} {'is' if len(absent) == 1 else 'are'} not installed" + (f": {what}" if what else "")
        return CheckResult(_PART, name, "missing" if extra else "problem", told, f"pip install '{target}'")
    return CheckResult(_PART, name, "ok", ", ".join(f"{each.name} {versions[each.name]}" for each in members))


def _spec(needed: Requirement) -> str:
    return f"{needed.name}>={needed.least}" if needed.least else needed.name


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def check_packages(on_import: OnImport, *, extras: bool = True) -> list[CheckResult]:
    """Check Brand, the packages that it needs, and its extras. Imports packages in a child process."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        told = f"{brand.__version__} is imported from a folder and not installed, so its extras are unknown"
        return [CheckResult(_PART, "brand", "missing", told, f"pip install {DISTRIBUTION}")]
    needed = [each for each in map(parse, lines) if each is not None and (extras or not each.extra)]
    versions = {each.name: found for each in needed if (found := _version(each.name))}
    faults = import_faults([name for name in MODULES if name in versions], on_import)
    return [CheckResult(_PART, "brand", "ok", brand.__version__), *judge(needed, versions, faults)]


def _version(name: str) -> str:
    """Return the installed version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def import_faults(names: Sequence[str], on_import: OnImport, *, limit_s: float = LIMIT_S) -> dict[str, str]:
    """Return the packages that cannot be imported, and the reasons; one child process imports all packages.

    After a package that ends the process, the others are imported in a new process.
    """
    faults: dict[str, str] = {}
    rest = list(names)
    while rest:
        errors, ending = _imported([MODULES[name] for name in rest], limit_s)
        faults |= {name: error for name, error in zip(rest, errors, strict=False) if error}
        rest = rest[len(errors) :]
        if rest:
            faults[rest.pop(0)] = ending
        on_import(len(names) - len(rest), len(names))
    return faults


def _imported(modules: Sequence[str], limit_s: float) -> tuple[list[str], str]:
    """Return the errors of a process that imports modules, and how it ended if it did not import them all."""
    command, asked = child_command("brand.doctor.packages"), json.dumps(modules).encode()
    try:
        done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=limit_s)
        said, ending = done.stdout, f"its import ended the process, with code {done.returncode}"
    except subprocess.TimeoutExpired as expired:
        said, ending = expired.stdout or b"", f"it did not load within {counted(round(limit_s), 'second')}"
    return [json.loads(line) for line in said.splitlines()], ending


def main() -> None:
    """Import the modules that standard input lists, in the child process. Writes the error of each, or "", as JSON."""
    modules = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        warnings.simplefilter("ignore")
        for module in modules:
            out.write(json.dumps(_error(module)) + "\n")
            out.flush()


def _error(module: str) -> str:
    """Return why a module cannot be imported: the first line of the error; empty if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - an import runs any code
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""
