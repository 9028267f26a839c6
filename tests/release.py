"""Does the wheel work where users install it? `make release-check` runs this: `python -m tests.release`.

    tracked files -> sdist -> wheel -> for each Python and PyTorch: a new environment -> the steps of `make demo`

The steps run in a folder that holds `examples/` and nothing else of this repository. Interpreters are looked for as
`python3.12` in PATH and in pyenv's folder of versions. A combination that cannot be had is shown with the reason and is
no failure, but a run in which none can be had is one. Environments come from the package registry, and most take some
gigabytes: each is removed after its run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
EXTRAS: Final = "train,audio"
LIMIT_S: Final = 1800.0
"""How long one command may take: PyTorch with CUDA is a download of some gigabytes."""

_VERSIONS: Final = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
_NONE: Final = re.compile(r"No matching distribution found for torch.*$", re.MULTILINE)
_WARNING: Final = re.compile(r"^.*\b\w*Warning: .*$", re.MULTILINE)


class Unavailable(Exception):
    """A Python or a PyTorch that cannot be had here."""


@dataclass(frozen=True)
class Outcome:
    """What became of one combination."""

    python: str
    torch: str
    told: str
    state: str = "ran"
    """`ran`, `failed`, or `unavailable`."""


def run(*command: str | Path, cwd: Path | None = None, path: Path | None = None) -> str:
    """The output of a command, which sees nothing of this repository. Raises `CalledProcessError`."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    kept |= {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"} if path else {}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept | {"PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    return done.stdout


def find_python(version: str, search: str | None = None, pyenv: Path | None = None) -> Path:
    """An interpreter of this version. Raises `Unavailable`."""
    root = pyenv or Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    named = shutil.which(f"python{version}", path=search)
    found = [Path(named)] if named else []
    found += sorted((root / "versions").glob(f"{version}.*/bin/python"), reverse=True)
    for python in found:
        try:
            if run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip() == version:
                return python
        except (OSError, subprocess.CalledProcessError):  # a shim of pyenv for a version that is not chosen
            continue
    raise Unavailable(f"no python{version} in PATH, and none below {root / 'versions'}")


def build(target: Path) -> tuple[Path, Path]:
    """An sdist of the tracked files, and the wheel that is built from it: both files."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        for name in _tracked():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source)
    (sdist,), (wheel,) = target.glob("*.tar.gz"), target.glob("*.whl")
    return sdist, wheel


def _tracked() -> list[str]:
    """Files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).exists()]


def environment(python: Path, folder: Path, *requirements: str) -> Path:
    """A new virtual environment in `folder` that holds these packages. Returns its interpreter."""
    run(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    if requirements:
        run(inside, "-m", "pip", "install", "--quiet", "--no-input", *requirements)
    return inside


def demo(python: Path, folder: Path) -> str:
    """The output of the steps of `make demo`, in a new folder, with the environment of `python`."""
    folder.mkdir()
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    ready = python.parent.parent / ".ready"
    ready.touch()  # to make, the environment is set up
    return run("make", "-f", ROOT / "Makefile", "demo", f"VENV={python.parent.parent}", cwd=folder, path=python.parent)


def oldest_torch(python: Path) -> str:
    """The oldest PyTorch that the metadata allows and the registry has for this Python. Raises `Unavailable`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["train"]
    (least,) = (_numbers(line.partition(">=")[2]) for line in extras if line.startswith("torch"))
    try:
        told = run(python, "-m", "pip", "index", "versions", "torch")
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"the registry says nothing of torch: {error.output.strip().splitlines()[-1]}") from None
    match = _VERSIONS.search(told)
    plain = [version for version in (match[1] if match else "").split(", ") if re.fullmatch(r"[\d.]+", version)]
    able = [version for version in plain if _numbers(version) >= least]
    if not able:
        raise Unavailable(f"the registry has no torch for {python}")
    return min(able, key=_numbers)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def check(version: str, torch: str, wheel: Path) -> Iterator[Outcome]:
    """Run the demo with one Python and one PyTorch: `oldest`, `newest`, or a version."""
    with tempfile.TemporaryDirectory(prefix="brand-release-") as work:
        started, folder = time.monotonic(), Path(work)
        try:
            python = find_python(version)
            wanted = oldest_torch(python) if torch == "oldest" else torch
            pinned = [] if wanted == "newest" else [f"torch=={wanted}"]
            inside = environment(python, folder / "env", f"brand-data[{EXTRAS}] @ {wheel.as_uri()}", *pinned)
            installed = time.monotonic()
            run(inside, "-W", "error", "-m", "compileall", "-q", "-f", home_of(inside))
            told = demo(inside, folder / "demo")
            doctor = json.loads(run(inside.parent / "brand", "doctor", "--json", cwd=folder, path=inside.parent))
        except Unavailable as error:
            yield Outcome(version, torch, f"cannot be had here: {error}", "unavailable")
        except subprocess.CalledProcessError as error:
            if match := _NONE.search(error.output):
                yield Outcome(version, torch, f"cannot be had here: {match[0]}", "unavailable")
            else:
                yield Outcome(version, torch, f"{error.cmd} ended with {error.returncode}:\n{error.output}", "failed")
        else:
            shown = [f["told"] for f in doctor["findings"] if f["name"] in ("core", "train")]
            seconds = sum(f.get("seconds", 0) for f in doctor["findings"])
            times = f"installed in {installed - started:.0f} s, run in {time.monotonic() - installed:.0f} s"
            yield Outcome(
                version, torch, f"{', '.join(shown)}; {times}; the self-test of brand doctor took {seconds:.1f} s"
            )
            for warning in sorted(set(_WARNING.findall(told))):
                yield Outcome(version, torch, f"warned: {warning}")


def home_of(python: Path) -> str:
    """Where the installed package lies; it must not be this repository."""
    home = run(python, "-c", "import brand, os; print(os.path.dirname(brand.__file__))", cwd=Path("/")).strip()
    if Path(home).is_relative_to(ROOT):
        raise AssertionError(f"{home} is the source, not the wheel")
    return home


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all combinations, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="X.Y", help=f"default: {' '.join(PYTHONS)}")
    parser.add_argument(
        "--torch", nargs="+", default=("oldest", "newest"), help="versions, `oldest` or `newest`; default: these two"
    )
    args = parser.parse_args(arguments)
    states = set()
    with tempfile.TemporaryDirectory() as folder:
        _, wheel = build(Path(folder))
        for python in args.python:
            for torch in args.torch:
                for outcome in check(python, torch, wheel):
                    states.add(outcome.state)
                    mark = "FAILED " if outcome.state == "failed" else ""
                    sys.stdout.write(f"Python {outcome.python}, torch {outcome.torch}: {mark}{outcome.told}\n")
                    sys.stdout.flush()
    return 0 if "ran" in states and "failed" not in states else 1


if __name__ == "__main__":
    sys.exit(main())
