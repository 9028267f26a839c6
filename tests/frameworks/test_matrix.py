"""No silent cell: each way to train in a framework is exact, or is refused with a message that says what to do.

`python -m tests.matrix.run FRAMEWORK --only REGEX` runs single cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.matrix.cells import FRAMEWORKS, Cell, draw
from tests.matrix.page import PAGE, row
from tests.matrix.verdicts import WRONG, Matrix, Verdict

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(3600)]

Judged = Mapping[str, Mapping[Cell, Verdict]]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    """The verdicts of the cells that are drawn, by framework."""
    matrix = Matrix(tmp_path_factory.mktemp("matrix"))
    yield matrix.judge(FRAMEWORKS, draw())
    matrix.end()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_cell_is_exact_or_refused(judged: Judged, framework: str) -> None:
    """And the cures that a refusal names are exact."""
    wrong = [f"{cell}: {verdict.message}" for cell, verdict in judged[framework].items() if verdict.word == WRONG]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_page_has_its_row(judged: Judged, framework: str) -> None:
    """Written by `python -m tests.matrix.run FRAMEWORK --page`."""
    assert row(framework, judged[framework]) in PAGE.read_text(encoding="utf-8")
