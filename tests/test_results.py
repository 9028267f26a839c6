"""README.md and bench/README.md print what the files in bench/results/ hold: no figure of a measurement is typed by
hand. A figure of the documentation that links to such a file is in it.

Tables are written by `python -m bench.honest_table --write`, and compared here cell by cell. A figure in prose is a
link to its file whose title names table, row and column (or the ratio of two cells), and is looked up there.
Everything else that looks like a measurement (a number with a unit, a percentage, a factor) has to be in `STATED`:
what was set, not measured.
"""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from bench import harness
from bench.harness import Outcome
from bench.honest_table import CHART, LINKED, RESULTS, ROOT, ROWS, cell, chart, figure, linked, number, written
from tests.test_docs import fresh_page

PAGES = {"README.md": "", "bench/README.md": "## Results\n"}
"""The pages, and where their results begin."""
FILES = sorted(RESULTS.glob("*.json"))
STATED = {
    "README.md": {
        "120 MB/s": "the lab's profile `nas`",
        "400 reads/s": "the lab's profile `nas`",
        "105 KB": "the size of the images that training_data.py makes",
        "500 bytes": "the size of the records that training_data.py makes",
        "1 GB/s": "the fastest disk of the machines, rounded",
    },
    "bench/README.md": {},
}
"""Numbers with a unit that are no measurements, and where they are from."""

DOCS = ROOT / "docs"
PAGES_OF_DOCS = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
_REFERENCE = re.compile(r'\[([^\]]+)\]\(((?:(?:\.\./)*bench/)?results/[\w.-]+\.json) "([^"]+)"\)')
_LIKE_A_MEASUREMENT = re.compile(
    r"\d[\d,.]*\s?(?:%|x\b|times\b|[kMGT]i?B(?:/s)?\b|bytes\b|(?:µs|us|ms|s|h|min|hours|minutes|seconds)\b"
    r"|(?:images|records|samples|reads|batches)/s|Gbit/s)|\d{1,3}(?:,\d{3})+"
)


def page_of(name: str) -> str:
    """The text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def prose_of(name: str) -> str:
    """The text of a page that people wrote: without code, blocks of results, links to results, and goals."""
    text = page_of(name)
    text = text[text.index(PAGES[name]) :]
    text = re.sub(
        r"<!-- (?:the table|results: [\w.-]+) -->.*?<!-- end of (?:the table|results) -->", "", text, flags=re.DOTALL
    )
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = _REFERENCE.sub("", text)
    text = re.sub(r"\]\([^)]*\)|`[^`\n]*`", "", text)
    return "\n\n".join(part for part in text.split("\n\n") if not re.match(r"Goals?:", part.strip()))


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_those_of_the_files(name: str) -> None:
    """Each block of results is what its files say. `python -m bench.honest_table --write` writes them."""
    assert written(page_of(name)) == page_of(name)


def test_the_chart_is_that_of_the_files() -> None:
    """The bars of README's chart are its first row. `python -m bench.honest_table --write` draws them."""
    assert chart(ROWS[0]) == CHART.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.stem)
def test_linked_figures_are_cells_of_the_files(page: Path) -> None:
    """Each figure that is a link to a cell has its text. `python -m bench.honest_table --write` renews them."""
    text = page.read_text(encoding="utf-8")
    wrong = text.replace("](../../bench/results/", "1](../../bench/results/")
    assert linked(text) == text == linked(wrong) != wrong


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_results(name: str) -> None:
    """The markers that the comparison looks for are there."""
    assert page_of(name).count("<!-- end of ") >= 1


@pytest.mark.parametrize("name", PAGES)
def test_figures_in_prose_are_those_of_the_files(name: str) -> None:
    """A figure that is a link is the cell, or the ratio of two cells, that its title names."""
    wrong = []
    references = _REFERENCE.findall(page_of(name))
    for shown, file, where in references:
        found = figure(json.loads(((ROOT / name).parent / file).read_text()), where)
        if not agrees(shown, found):
            wrong.append((shown, found, where))
    assert wrong == []
    assert references


def _linked(page: str) -> bool:
    return _REFERENCE.search((DOCS / page).read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize("name", [name for name in PAGES_OF_DOCS if _linked(name)])
def test_figures_of_the_documentation_are_those_of_the_files(name: str) -> None:
    """A figure that is a link to a file of results is the cell that its title names. The only table has no title."""
    page = DOCS / name
    wrong = []
    for shown, file, where in _REFERENCE.findall(page.read_text(encoding="utf-8")):
        full = where if where.count(" > ") > 1 else f" > {where}"
        found = figure(json.loads((page.parent / file).read_text()), full)
        if not agrees(shown, found):
            wrong.append((shown, found, where))
    assert wrong == []


def agrees(shown: str, found: str | float) -> bool:
    """Whether a page shows a cell (or one of the figures of a cell such as `984 / 4,272`), or a rounded ratio."""
    plain = shown.strip("*~ ")
    if isinstance(found, str):
        return plain in {found, *found.split(" / ")}
    value, digits = number(plain), len(plain.partition(".")[2].rstrip("x %"))
    return value == round(100 * found if plain.endswith("%") else found, digits)


@pytest.mark.parametrize(
    ("shown", "found", "right"),
    [
        ("1,107", "1,107", True),
        ("~ **975**", "975", True),
        ("4,272", "984 / 4,272", True),
        ("98", "984 / 4,272", False),
        ("1.3x", 1.26, True),
        ("1.2x", 1.26, False),
        ("52 %", 0.5234, True),
        ("0.83x", 0.8295, True),
    ],
)
def test_a_figure_agrees_with_its_cell(shown: str, found: str | float, right: bool) -> None:
    """A figure is the cell as it is; a ratio has the digits that are shown."""
    assert agrees(shown, found) == right


@pytest.mark.parametrize("name", PAGES)
def test_no_measurement_is_typed_by_hand(name: str) -> None:
    """A number with a unit in prose is a link to a file of results, or is stated in this test."""
    found = {" ".join(match.split()) for match in _LIKE_A_MEASUREMENT.findall(prose_of(name))}
    assert found - set(STATED[name]) == set()


BENCHMARKS = ROOT / "docs" / "explanation" / "benchmarks.md"
_ROW_OF_FILE = re.compile(r"^\| [^|]+ (\|.*\|) [^|]*bench/results/([\w-]+\.json)\)[^|]*\|$", re.MULTILINE)
_FIGURE = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def test_rows_of_the_benchmarks_page_are_in_their_files() -> None:
    """Each figure of a row that links to a file of results is in a table of that file."""
    rows = _ROW_OF_FILE.findall(BENCHMARKS.read_text(encoding="utf-8"))
    assert len(rows) >= 10
    wrong = {}
    for cells, name in rows:
        tables = json.loads((RESULTS / name).read_text())["tables"]
        there = {
            found for table in tables for row in table["rows"] for each in row for found in _FIGURE.findall(str(each))
        }
        if missing := set(_FIGURE.findall(re.sub(r"\([^)]*\)", "", cells))) - there:
            wrong[name, cells] = missing
    assert wrong == {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_says_how_it_came_about(file: Path) -> None:
    """Each file has command, date, version, machine and tables, and single runs unless it holds printed medians."""
    content = json.loads(file.read_text())
    assert content["command"].startswith("python -m bench.")
    assert date.fromisoformat(content["date"]) <= date.today()
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", content["version"])
    assert content["machine"]["cpu"]
    assert ("results" in content) != bool(content.get("printed"))
    assert content["tables"]
    for table in content["tables"]:
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
        assert len({row[0] for row in table["rows"]}) == len(table["rows"])


def test_a_page_names_only_files_that_are_there() -> None:
    """A reader can open each file that README.md and bench/README.md name."""
    named = {
        match
        for name in PAGES
        for match in re.findall(r"results/([\w-]+\.json)", page_of(name).partition("## Results")[2])
    }
    assert named <= {file.name for file in FILES}


def test_a_printed_table_is_read_back() -> None:
    """The tables of a printed text print as the same text."""
    text = "\nimages, warm\n" + harness.table(["rival", "samples/s"], [["brand", "1,107"], ["spdl", ""]])
    (found,) = harness.tables_of(f"{text}\nFaster than brand: nobody.\n")
    assert found == {
        "title": "images, warm",
        "columns": ["rival", "samples/s"],
        "rows": [["brand", "1,107"], ["spdl", ""]],
        "below": ["Faster than brand: nobody."],
    }
    assert harness.printed(found) == f"{text.strip()}\nFaster than brand: nobody."


def test_a_saved_file_has_the_tables_that_were_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`save` writes command, version and what `show` has printed, without folders of this machine."""
    monkeypatch.setattr("bench.harness._SHOWN", [])
    monkeypatch.setattr("sys.argv", ["x.py", "--work", str(tmp_path), "--task", "images"])
    harness.show("images\n" + harness.table(["rival", "call s"], [["brand", "0.34"]]))
    harness.save(tmp_path / "a.json", "Question?\n\nMore.", {"repeat": 3}, [], {"runs": []})
    content: dict[str, Any] = json.loads((tmp_path / "a.json").read_text())
    assert cell(content, "images", "brand", "call s") == "0.34"
    assert str(tmp_path) not in content["command"]
    assert {"question", "command", "date", "version", "machine", "versions", "settings", "tables", "results"} == set(
        content
    )


def test_measurements_of_other_rivals_stay(tmp_path: Path) -> None:
    """`kept` reads the single measurements of a file back, without those of the rivals that are measured again."""
    outcomes = [Outcome("a", "ok", wall_s=1.5, values={"first_s": 2}), Outcome("b", "not run", "needs about 48 GB")]
    harness.save(tmp_path / "a.json", "Question?", {}, [], outcomes)
    assert harness.kept(tmp_path / "a.json") == outcomes
    assert harness.kept(tmp_path / "a.json", without=["a"]) == outcomes[1:]
    assert harness.kept(tmp_path / "none.json") == harness.kept(None) == []


@pytest.mark.parametrize("processes", [1, 3])
def test_runs_in_processes_end_in_the_order_of_their_jobs(processes: int) -> None:
    """The results are those of the jobs, one after the other, with any number of processes."""
    jobs = ((2, power) for power in range(7))
    assert list(harness.in_processes(pow, jobs, processes)) == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.slow
@pytest.mark.pages
def test_the_readme_shows_what_happens(tmp_path: Path) -> None:
    """README's commands and its Python run as printed, and print what stands there."""
    assert fresh_page("../README.md", tmp_path) == page_of("README.md")
