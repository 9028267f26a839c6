"""Which cells of the matrix of frameworks are exact, refused with a cure that is exact, or wrong?

    python -m tests.matrix.run [FRAMEWORK ...] [--all] [--only REGEX] [--seed N]

It is a tool: it has cells that are wrong, or whose program is. `tests/frameworks/test_matrix.py` is the test, with the
cells that the page shows.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.matrix.cells import FRAMEWORKS, LOADERS, Cell, cells, draw
from tests.matrix.jobs import make_data
from tests.matrix.judge import model_of
from tests.matrix.loops import Samples
from tests.matrix.verdicts import Verdicts

SEED = 5
"""The seed with which cells are drawn."""


def show(cell: Cell, word: str, cures: Sequence[Cell]) -> None:
    """Print a verdict."""
    sys.stdout.write(" -> ".join((str(cell), word, *map(str, cures))) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run cells of some frameworks, and print each verdict."""
    parser = argparse.ArgumentParser()
    parser.add_argument("frameworks", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = make_data(Path(name))
        samples = Samples(folder)
        models = {loader: model_of(samples, loader) for loader in LOADERS}
        for framework in options.frameworks or FRAMEWORKS:
            (work := folder / framework.replace(" ", "-")).mkdir()
            of = cells(framework)
            begin = time.monotonic()
            verdicts = Verdicts(framework, folder, work, models)
            chosen = [cell for cell in of if re.search(options.only, str(cell))]
            words = verdicts.judge(chosen if options.all or options.only else draw(of, options.seed), show)
            sys.stdout.write(f"{framework}: {len(words)} cells, {time.monotonic() - begin:.0f} s\n")


if __name__ == "__main__":
    main()
