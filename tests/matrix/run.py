"""Which cells of the matrix of frameworks are exact, refused with a cure that is exact, or wrong?

    python -m tests.matrix.run [FRAMEWORK ...] [--all] [--only REGEX] [--seed N] [--page]

`tests/frameworks/test_matrix.py` is the test of the cells that are drawn. `--page` writes their page.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.matrix.cells import FRAMEWORKS, Cell, cells, draw
from tests.matrix.page import write
from tests.matrix.verdicts import EXACT, REFUSED, REPORTED, WRONG, Matrix, Verdict
from tests.pythonchild import forked_starts


def show(cell: Cell, verdict: Verdict) -> None:
    """Print a verdict."""
    more = f": {verdict.message}" if verdict.word not in (EXACT, REFUSED, REPORTED) else ""
    sys.stdout.write(f"{cell} -> {verdict}{more}\n")
    sys.stdout.flush()


def main() -> None:
    """Run cells of some frameworks, and print each verdict. The exit status says whether one is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("frameworks", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    every = [cell for framework in FRAMEWORKS for cell in cells(framework)]
    chosen = [cell for cell in every if re.search(options.only, str(cell))]
    chosen = chosen if options.all or options.only else draw(options.seed)
    with tempfile.TemporaryDirectory() as name, forked_starts():
        matrix, begin_s = Matrix(Path(name)), time.monotonic()
        judged = matrix.judge(options.frameworks or FRAMEWORKS, chosen, show)
        matrix.end()
    for framework, found in judged.items():
        words = Counter(verdict.word for verdict in found.values())
        counted = ", ".join(f"{count} {word}" for word, count in sorted(words.items()))
        followed = f"{len(matrix.of(framework).followed)} cures followed"
        sys.stdout.write(f"{framework}: {len(found)} cells: {counted}; {followed}\n")
    used_s = sum(os.times()[:4])
    sys.stdout.write(f"{time.monotonic() - begin_s:.0f} s, {used_s:.0f} CPU-seconds\n")
    if options.page:
        write(judged)
    sys.exit(any(verdict.word == WRONG for found in judged.values() for verdict in found.values()))


if __name__ == "__main__":
    main()
