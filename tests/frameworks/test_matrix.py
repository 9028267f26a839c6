"""No silent cell: each way to train in a framework is exact, or is refused with a message whose cure is exact."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.frameworks.cells import FRAMEWORKS, LOADERS, Cell, cells, draw
from tests.frameworks.jobs import make_data
from tests.frameworks.judge import model_of
from tests.frameworks.loops import Samples
from tests.frameworks.matrix import WRONG, Verdicts

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(3600)]
SEED = 5
"""Of the cells that are drawn."""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_cell_is_exact_or_its_cure_is(
    framework: str, verdicts_of: Callable[[str, Path], Verdicts], tmp_path: Path
) -> None:
    """There is no third outcome."""
    words = verdicts_of(framework, tmp_path).judge(draw(cells(framework), SEED))
    assert {str(cell): word for cell, word in words.items() if word.startswith(WRONG)} == {}


def show(cell: Cell, word: str, cures: Sequence[Cell]) -> None:
    """Print a verdict."""
    sys.stdout.write(" -> ".join((str(cell), word, *map(str, cures))) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run cells of some frameworks."""
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
            for log in work.glob("log-*"):
                Path("/tmp/matrix-" + work.name + "-" + log.name).write_text(log.read_text())


if __name__ == "__main__":
    main()
