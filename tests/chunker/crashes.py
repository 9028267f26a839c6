"""Does a conversion that ends before its 1st, 2nd, 3rd ... call of a system function go on, to the same end?

    python -m tests.chunker.crashes WAY SOURCE PLACE CALL      prints how many calls there were

Each attempt is a forked process that converts SOURCE by a way of `WAYS`, and ends like a killed one instead of making
that call of `os.CALL`. What it leaves is never half a data set. A second attempt, undisturbed, goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from brand.chunker import Options, convert_audio
from brand.chunker.distributed import Task, plan_images, run_task, seal
from brand.errors import FormatError
from brand.storage.dataset.dataset import StoredDataSet
from tests.support import LIMIT_S, tree_digest

_ROOT: Final = Path(__file__).resolve().parents[2]
_ENDED: Final = 77
"""Exit code of an attempt that was ended."""


def _images_in_parts(source: Path, target: Path) -> None:
    if not (target / "brand.json").exists():
        for number in (1, 0):
            run_task(plan_images(source, target, Options(chunk_size=8, jobs=1), tasks=2), Task(number, 2), jobs=1)
    seal(target)


def _audio(source: Path, target: Path) -> None:
    if not (target / "brand.json").exists() or (target / ".brand-work").exists():
        convert_audio(source, target, Options(chunk_size=14, jobs=1), transcripts=source / "transcripts.tsv")


WAYS: Final[dict[str, Callable[[Path, Path], None]]] = {"images in parts": _images_in_parts, "audio": _audio}


def steps_survived(way: str, source: Path, place: Path, call: str) -> int:
    """How many calls there were, before each of which an attempt was ended. Runs in a process of its own."""
    command = [sys.executable, "-m", "tests.chunker.crashes", way, str(source), str(place), call]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def _attempt(way: str, source: Path, target: Path, call: str, steps: int | None = None) -> int:
    """Exit code of a process that converts, and ends in place of the call after so many; None: it does not end."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    real, left = getattr(os, call), [steps]

    def patched(*args: Any, **more: Any) -> Any:
        if left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                os._exit(_ENDED)
        return real(*args, **more)

    setattr(os, call, patched)
    try:
        WAYS[way](source, target)
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent does
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _check_what_is_left(target: Path, whole: dict[str, str], steps: int) -> None:
    """It is the whole data set, or none."""
    if (target / "brand.json").exists():
        found = tree_digest(target).items()
        assert {name: digest for name, digest in found if not name.startswith(".brand-work")} == whole, steps
        return
    try:
        StoredDataSet(target)
    except FormatError:
        return
    raise AssertionError(f"readable after {steps} steps")


def main(way: str, source: Path, place: Path, call: str) -> None:
    """End attempts before each call, until one has no call left."""
    os.register_at_fork(before=sys.stdout.flush)
    assert _attempt(way, source, place / "whole", call) == 0
    whole, steps = tree_digest(place / "whole"), 0
    while code := _attempt(way, source, target := place / f"{steps:03d}", call, steps):
        assert code == _ENDED, code
        _check_what_is_left(target, whole, steps)
        assert _attempt(way, source, target, call) == 0, steps
        assert tree_digest(target) == whole, steps
        steps += 1
    sys.stdout.write(str(steps))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
