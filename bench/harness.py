"""How is one rival measured without disturbance by the other rivals, and how is the result written down?

A benchmark file starts itself again for every single measurement:

    parent   python -m bench.convert --data DIR --work DIR              decides which rivals to run, how often
    child    python -m bench.convert ... --rival NAME --report FILE     measures one rival once and ends

1. `run_fresh` starts the child in its own session, with a time limit, and saves its output for the reason of a failure.
2. The child calls `report` with its measurements, as one JSON object. Time that it spends on checks is reported as
   `untimed_s` and `untimed_cpu_s`, and the parent subtracts it.
3. The parent adds the figures that only it can see: seconds and CPU seconds of the whole process tree.
4. `round_robin` takes turns (A B C, A B C, ...), so that a slow minute of the machine hits every rival alike. Tables
   show medians, and the JSON file has every single measurement.

A rival that fails stays in the tables as "failed", with its reason; a rival that is missing, as "not installed"; one
that would need too much, as "not run". Times, caches and memory of the system are in system.py.

A file of results holds question, command, date, version of Brand, machine, versions of the libraries, settings,
`tables` (everything that the run printed) and `results` (every single measurement). A file with `"printed": true` has
no `results`: it was made from the medians that a page printed, and the single measurements are lost.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, TypeVarTuple

from brand.version import __version__

_TRIES: Final = 4
_CALM: Final = "the machine's host takes no more than CORES meanwhile (where a benchmark notes it)"

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

Status = Literal["ok", "failed", "timed out", "not installed", "not run"]

LAB: Final = shlex.join([sys.executable, "-m", "bench.lab"])
"""The command that limits storage and memory, in the form of a command-line option."""

_SHOWN: Final[list[str]] = []
"""The results that this process has printed."""


@dataclass(frozen=True, slots=True)
class Rival:
    """One way to do the work."""

    name: str
    """Name in the tables."""
    module: str = ""
    """Module that must be importable; empty for tools of the system."""
    distribution: str = ""
    """Distribution whose version is recorded."""

    @property
    def installed(self) -> bool:
        """Whether the module can be found (it is not imported)."""
        return not self.module or importlib.util.find_spec(self.module) is not None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measurements of one fresh process."""

    rival: str
    status: Status
    reason: str = ""
    """The reason of a failure; empty if the status is "ok"."""
    wall_s: float = 0.0
    """Seconds from start to end of the process, without its checks."""
    cpu_s: float = 0.0
    """User and system seconds of the process and its children, without its checks."""
    values: dict[str, Any] = field(default_factory=dict)
    """The report of the child."""


def parser(module: str, doc: str | None, *, data: bool = True, repeat: int = 3) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have; `--rival` and `--report` are for the child."""
    options = argparse.ArgumentParser(prog=f"python -m {module}", description=(doc or "").partition("\n")[0])
    if data:
        options.add_argument("--data", type=Path, required=True, help="folder with images/ and text/")
    options.add_argument("--work", type=Path, required=True, help="scratch folder, for gigabytes")
    options.add_argument("--out", type=Path, help="write the results to this JSON file")
    options.add_argument("--repeat", type=int, default=repeat, help="fresh processes for each rival (%(default)s)")
    options.add_argument("--limit", type=float, default=1800.0, help="seconds for one process (%(default)s)")
    options.add_argument("--calm", type=float, metavar="CORES", help=f"measure up to {_TRIES} times, until {_CALM}")
    options.add_argument("--rival", help=argparse.SUPPRESS)
    options.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    return options


def run_fresh(rival: Rival, module: str, arguments: Sequence[str], limit_s: float) -> Outcome:
    """Measure `rival` once: `python -m module arguments --rival NAME --report FILE`, with our own arguments first."""
    if not rival.installed:
        return Outcome(rival.name, "not installed", f"no module named {rival.module!r}")
    with tempfile.TemporaryDirectory() as folder:
        report_file, log_file = Path(folder, "report.json"), Path(folder, "log.txt")
        last = [*arguments, "--rival", rival.name, "--report", str(report_file)]
        command = [sys.executable, "-m", module, *sys.argv[1:], *last]
        cpu_before, started = _children_cpu_s(), time.perf_counter()
        code = _run(command, log_file, limit_s)
        wall_s, cpu_s = time.perf_counter() - started, _children_cpu_s() - cpu_before
        if code is None:
            return Outcome(rival.name, "timed out", f"no end after {limit_s:.0f} s", wall_s, cpu_s)
        if code != 0 or not report_file.exists():
            return Outcome(rival.name, "failed", _reason(log_file, code), wall_s, cpu_s)
        values = json.loads(report_file.read_text())
    wall_s, cpu_s = wall_s - values.pop("untimed_s", 0.0), cpu_s - values.pop("untimed_cpu_s", 0.0)
    return Outcome(rival.name, "ok", "", wall_s, cpu_s, values)


def kept(file: Path | None, without: Container[str] = ()) -> list[Outcome]:
    """Return the measurements in a file of results, without those of some rivals; none if there is no file."""
    if file is None or not file.exists():
        return []
    return [Outcome(**each) for each in json.loads(file.read_text())["results"] if each["rival"] not in without]


def report(file: Path, values: Mapping[str, Any]) -> None:
    """Write the child's measurements; the child calls this function at its end."""
    file.write_text(json.dumps(values))


def round_robin(rivals: Iterable[Rival], repeat: int, measure: Callable[[Rival], Outcome]) -> list[Outcome]:
    """Measure every rival `repeat` times, in turns. A rival that does not end in time is not tried again."""
    outcomes: list[Outcome] = []
    waiting = list(rivals)
    for turn in range(repeat):
        for rival in tuple(waiting):
            progress(f"{rival.name}, {turn + 1} of {repeat}")
            outcomes.append(measure(rival))
            if outcomes[-1].status != "ok":
                progress(f"{rival.name}: {outcomes[-1].status}: {outcomes[-1].reason}")
                waiting.remove(rival)
    return outcomes


def in_processes(
    function: Callable[[*_Arguments], _Result], jobs: Iterable[tuple[*_Arguments]], processes: int
) -> Iterator[_Result]:
    """Call `function` with the arguments of each job, in this number of processes. Yield the results in that order.

    Jobs begin while later ones are made.
    """
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for waiting in [pool.submit(function, *arguments) for arguments in jobs]:
            yield waiting.result()


def calmly(measure: Callable[[Rival], Outcome], most: float | None) -> Callable[[Rival], Outcome]:
    """Repeat `measure` until the machine's host takes at most `most` cores from a run, at most `_TRIES` times.

    Return the calmest run. None for `most` measures once.
    """

    def measured(rival: Rival) -> Outcome:
        tries: list[Outcome] = []
        while len(tries) < _TRIES:
            tries.append(measure(rival))
            stolen = tries[-1].values.get("stolen_cores")
            if tries[-1].status != "ok" or most is None or stolen is None or stolen <= most:
                return tries[-1]
            progress(f"{rival.name}: the host took {stolen:.2f} cores")
        return min(tries, key=lambda outcome: float(outcome.values["stolen_cores"]))

    return measured


def median_of(outcomes: Iterable[Outcome], rival: str, value: Callable[[Outcome], float]) -> float | None:
    """Return the median over the successful runs of `rival`, or None if there is none."""
    seen = [value(outcome) for outcome in outcomes if outcome.rival == rival and outcome.status == "ok"]
    return statistics.median(seen) if seen else None


def first_failure(outcomes: Iterable[Outcome], rival: str) -> Outcome | None:
    """Return the first failed run of `rival`, or None if there is none."""
    return next((o for o in outcomes if o.rival == rival and o.status != "ok"), None)


def failures(outcomes: Iterable[Outcome]) -> str:
    """Return a line with the reason for each rival with a failed run."""
    return "".join(f"\n{o.rival}: {o.status}: {o.reason}" for o in outcomes if o.status != "ok")


def faster_than(name: str, speeds: Mapping[str, float | None]) -> str:
    """Return a sentence that names the rivals that are faster than `name`."""
    own = speeds.get(name)
    if not own:
        return ""
    ahead = [f"{rival} (x{speed / own:.2f})" for rival, speed in speeds.items() if speed and speed > own]
    return f"\nFaster than {name}: {', '.join(ahead) or 'nobody'}."


def spread(runs: Sequence[Mapping[str, Any]], key: str, scale: float, form: str) -> str:
    """Return the median of some runs, with the lowest and the highest run if they differ."""
    found = sorted(values[key] * scale for values in runs if values.get(key) is not None)
    if not found:
        return ""
    low, middle, high = (format(value, form) for value in (found[0], statistics.median(found), found[-1]))
    return middle if low == high else f"{middle} ({low}-{high})"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    lines = [list(columns), ["-" * len(name) for name in columns], *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def tables_of(text: str) -> list[dict[str, Any]]:
    """Return the tables of a printed result: `title` (the line above), `columns`, `rows`, and the lines `below`."""
    tables: list[dict[str, Any]] = []
    title, inside = "", False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            if inside and line.strip():
                tables[-1]["below"].append(line)
            else:
                title, inside = line.strip() or title, False
        elif not inside:
            tables.append({"title": title, "columns": cells, "rows": [], "below": []})
            title, inside = "", True
        elif set(line) - set("|- "):
            tables[-1]["rows"].append(cells)
    return tables


def printed(shown: Mapping[str, Any]) -> str:
    """Return a table of a file of results in the form in which the run printed it."""
    title = [shown["title"]] if shown["title"] else []
    return "\n".join([*title, table(shown["columns"], shown["rows"]), *shown["below"]])


def show(text: str) -> None:
    """Print a result on standard output, and note it for `save`."""
    _SHOWN.append(text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def progress(text: str) -> None:
    """Print the progress on standard error."""
    sys.stderr.write(f"[{time.strftime('%H:%M:%S')}] {text}\n")
    sys.stderr.flush()


def save(file: Path, doc: str | None, settings: Mapping[str, Any], rivals: Iterable[Rival], results: Any) -> None:
    """Write everything that a reader needs to judge the numbers, with the tables that `show` has printed."""
    content = {
        "question": (doc or "").partition("\n")[0],
        "command": command(),
        "date": time.strftime("%Y-%m-%d"),
        "version": __version__,
        "machine": machine(),
        "versions": versions(rivals),
        "settings": dict(settings),
        "tables": tables_of("\n\n".join(_SHOWN)),
        "results": results,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, default=asdict) + "\n")


def command() -> str:
    """Return the command line of this process, with only the last part of each absolute path."""
    module = sys.modules["__main__"].__spec__
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", module.name if module else Path(sys.argv[0]).stem, *words])


def machine() -> dict[str, Any]:
    """Return facts about the machine that measures."""
    cpu = _first_field(Path("/proc/cpuinfo"), "model name") or platform.processor()
    memory_kib = int((_first_field(Path("/proc/meminfo"), "MemTotal") or "0 kB").split()[0])
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_average_at_the_end": os.getloadavg()[0],
    }


def versions(rivals: Iterable[Rival]) -> dict[str, str]:
    """Return the version of every distribution in the comparison, and of the libraries that all use."""
    names = [rival.distribution for rival in rivals if rival.distribution]
    return {name: _version(name) for name in dict.fromkeys([*names, "torch", "numpy"])}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _first_field(file: Path, name: str) -> str:
    for line in file.read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def _run(command: Sequence[str], log_file: Path, limit_s: float) -> int | None:
    """Return the exit status, or None if the limit was reached and the whole session was killed."""
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill_session(process)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the session, so that no grandchild is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(log_file: Path, code: int) -> str:
    """Return the last line that the child printed, without the names of this machine's folders."""
    lines = log_file.read_text(errors="replace").strip().splitlines()
    last = lines[-1].strip() if lines else "printed nothing"
    for folder in (sys.prefix, os.getcwd(), str(Path.home())):
        last = last.replace(folder, "...")
    return f"exit status {code}: {last[:300]}"


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
