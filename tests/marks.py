"""Do the marks `slow` say what takes long? `make marks` measures it: `python -m tests.marks`.

A test that takes more than 0.25 s is slow, and `make quick` leaves it out. Time on a machine that does other work says
little, so an unmarked test that takes longer is run again, alone, three times, and its least time counts. Only the test
itself is timed: a fixture belongs to all tests that share it. Tests that are marked and take less than 0.05 s are named
as well; they are no failure, as another machine may be slower.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

SLOW_S, QUICK_S = 0.25, 0.05
AGAIN = 3
_OTHERS = "not realdata and not frameworks and not pages and not release and not tables"
_ALONE = ["-p", "no:xdist"]


def times(*arguments: str) -> dict[str, float]:
    """Seconds of each test that pytest runs with these arguments. Raises `CalledProcessError` where one fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
        options = ["-o", "junit_family=xunit1", "-o", "junit_duration_report=call"]
        subprocess.run([*command, *options, *arguments], stdout=sys.stderr, check=True)
        return {_name(case): float(case.get("time", 0)) for case in ElementTree.parse(report).iter("testcase")}


def _name(case: ElementTree.Element) -> str:
    """What pytest calls a test: its file, its class if it has one, and itself."""
    file, kind = case.get("file", ""), case.get("classname", "")
    within = kind.removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join(part for part in (file, within, case.get("name", "")) if part)


def main() -> int:
    """Print the marks that are wrong; 1 where a mark is missing."""
    long = [name for name, taken_s in times("-n", "auto", "-m", f"not slow and {_OTHERS}").items() if taken_s > SLOW_S]
    alone = {name: min(times(*_ALONE, name)[name] for _ in range(AGAIN)) for name in long}
    missing = {name: least_s for name, least_s in alone.items() if least_s > SLOW_S}
    for name, taken_s in sorted(times("-n", "auto", "-m", f"slow and {_OTHERS}").items()):
        if taken_s < QUICK_S:
            sys.stdout.write(f"{taken_s:6.2f} s, marked `slow`: {name}\n")
    for name, taken_s in sorted(missing.items()):
        sys.stdout.write(f"{taken_s:6.2f} s, not marked `slow`: {name}\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
