"""Which figures are in the README's table and in the results of bench/README.md? Those of the files in bench/results/.

    python -m bench.honest_table                # print the README's table
    python -m bench.honest_table FILE...        # print such a table of new files from `training_reads --out`
    python -m bench.honest_table --write        # write bench/results/ into README.md, its chart, and the pages below

Every cell of the README's table has the same basis: samples/s in the first epoch, from the end of the imports on (so
with start-up and the wait for the first batch), then samples/s in the second epoch. `~` marks a run that was stopped
early. The highest figure of each epoch is bold. Only figures of one row compare: they are from one run, in turns.

In bench/README.md, `<!-- results: NAME -->` begins a block with everything that bench/results/NAME.json holds. In
prose, a figure is a link whose title gives its source: a table, a row and a column of the file, or the ratio of two of
them.

    [12](results/NAME.json "images, warm > brand > with start")
    [1.3x](results/NAME.json "images, warm > spdl > with start over brand > with start")

In `LINKED`, such links to cells have the text of the cell, and `--write` renews them.

tests/test_results.py compares the pages with the files, so no figure can be typed by hand.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import harness

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results"
CHART: Final = ROOT / "docs" / "images" / "results.svg"
LINKED: Final = (ROOT / "docs" / "dev" / "billion-samples.md",)
"""Pages whose figures are links to cells."""
LIMIT: Final = "sequential limit"
RIVALS: Final = {
    "brand": "Brand, `BrandLoader`",
    "brand, DataLoader": "Brand, `DataLoader`",
    "spdl": "SPDL",
    "ffcv": "FFCV",
    "mosaicml": "mosaicml-streaming",
    "litdata": "litdata",
    "webdataset": "webdataset",
    "plain files": "plain files",
}
"""Columns of the README's table, by the names in the files."""
EPOCHS: Final = ("with start", "2nd epoch")
"""The columns of the files with the rates of the first and of the second epoch."""
APART: Final = "apart"

_BLOCK: Final = re.compile(r"(?<=<!-- results: )([\w.-]+)( -->\n).*?(?=<!-- end of results -->)", re.DOTALL)
_CELL: Final = re.compile(r'\[[^\[\]]+\](?=\([./]*bench/results/([\w.-]+\.json) "([^"]+)"\))')
_README_TABLE: Final = re.compile(r"(?<=<!-- the table -->\n).*?(?=<!-- end of the table -->)", re.DOTALL)

_LEFT_PX, _TOP_PX, _BAR_PX, _STEP_PX = 190, 54, 560, 34
"""The chart, in pixels: left end of the bars, top of the first one, length of the longest one, and their distance."""

Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the README's table: a table of a file of results."""

    label: str
    file: Path
    title: str
    """Title of the table in the file."""
    unit: int = 1
    """Divisor of the rates."""
    distance: bool = False
    """Whether the row shows the adjacent distance in place of rates."""


ROWS: Final = (
    Row("images, NAS", RESULTS / "training-images-nas-4.json", "images, nas-4"),
    Row("images, NVMe disk", RESULTS / "training-images-nvme-4.json", "images, nvme-4"),
    Row("images, in memory", RESULTS / "training-images-warm.json", "images, warm"),
    Row("images, decoded, in memory", RESULTS / "training-pixels.json", "images, decoded to 224 x 224, warm"),
    Row("records, NVMe disk, thousands", RESULTS / "training-records-nvme-4.json", "records, nvme-4", 1000),
    Row("records, in memory, thousands", RESULTS / "training-records-warm.json", "records, warm", 1000),
    Row("adjacent distance, images", RESULTS / "training-images-nvme-4.json", "images, nvme-4", distance=True),
    Row("adjacent distance, records", RESULTS / "training-records-warm.json", "records, warm", distance=True),
)
"""The rows of the README's table."""


def load(file: Path) -> Content:
    """Return the content of a file of results."""
    content: Content = json.loads(file.read_text(encoding="utf-8"))
    return content


def cell(content: Content, title: str, row: str, column: str) -> str:
    """Return a cell of a file, as the run printed it; empty if the table has no such row.

    Raises `KeyError` if there is no such table or column.
    """
    for table in content["tables"]:
        if table["title"] == title and column in table["columns"]:
            place = table["columns"].index(column)
            return next((str(cells[place]) for cells in table["rows"] if cells[0] == row), "")
    raise KeyError(f"no table {title!r} with a column {column!r}")


def number(text: str) -> float:
    """Return the first number of a cell: `1,107`, `98%`, `x1.50` and `9,994 (9,072 to 10,319)` have one."""
    found = re.search(r"\d[\d,]*(?:\.\d+)?", text)
    if found is None:
        raise ValueError(f"no number in {text!r}")
    return float(found[0].replace(",", ""))


def figure(content: Content, where: str) -> str | float:
    """Return the figure that the title of a link names: the text of a cell, or the ratio of two cells.

    `where` is `TABLE > ROW > COLUMN`, or two of them with ` over ` in between; the second omits the part that it has in
    common with the first: the table, or table and row.
    """
    first, over, second = where.partition(" over ")
    keys = first.split(" > ")
    text = cell(content, *keys)
    if not over:
        return text
    others = second.split(" > ")
    return number(text) / number(cell(content, *keys[: 3 - len(others)], *others))


def is_early(content: Content, title: str, rival: str) -> bool:
    """Return whether a run of the rival was stopped early."""
    try:
        return "~" in cell(content, title, rival, "notes")
    except KeyError:  # no run of this table has a note
        return False


def rates(content: Content, row: Row, rival: str) -> list[float]:
    """Return the rates of a rival, if it has any: first epoch with start-up, second epoch."""
    found = [cell(content, row.title, rival, column) for column in EPOCHS]
    return [number(text) / row.unit for text in found if text]


def table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the README's table in Markdown."""
    yield "| | storage limit | " + " | ".join(RIVALS.values()) + " | measured |"
    yield "|---" * (len(RIVALS) + 3) + "|"
    for row in rows:
        content = load(row.file)
        link = f"[{content['date']}]({Path('bench', 'results', row.file.name)})"
        cells = _distances(content, row) if row.distance else _rates(content, row)
        yield f"| {row.label} | " + " | ".join(cells) + f" | {link} |"


def _distances(content: Content, row: Row) -> list[str]:
    return ["", *(cell(content, row.title, rival, APART) for rival in RIVALS)]


def _rates(content: Content, row: Row) -> list[str]:
    found = {rival: rates(content, row, rival) for rival in RIVALS}
    best = [max((values[epoch] for values in found.values() if len(values) > epoch), default=0.0) for epoch in (0, 1)]
    limit = cell(content, row.title, LIMIT, EPOCHS[0])
    cells = [f"{number(limit) / row.unit:,.0f}" if limit and row.title.partition(", ")[2] != "warm" else ""]
    for rival, values in found.items():
        shown = [f"**{value:,.0f}**" if value == best[epoch] else f"{value:,.0f}" for epoch, value in enumerate(values)]
        cells.append(("~ " if shown and is_early(content, row.title, rival) else "") + " / ".join(shown))
    return cells


def block(name: str) -> str:
    """Return everything that a file holds: method, date and machine of the measurement, and its tables."""
    content = load(RESULTS / f"{name}.json")
    machine = content["machine"]
    facts = [content["date"], f"brand-data {content['version']}", machine["cpu"]]
    facts += [f"{machine['cores']} cores"] if "cores" in machine else []
    facts += [f"{machine['memory_gib']} GiB"] if "memory_gib" in machine else []
    facts += [f"disk: {machine['disk']}"] if "disk" in machine else []
    kept = "the printed medians" if content.get("printed") else "every single run"
    tables = "\n\n".join(harness.printed(table) for table in content["tables"])
    return (
        f"`{content['command']}`\n\n{'; '.join(facts)}. [`{name}.json`](results/{name}.json) has {kept}.\n\n"
        f"```\n{tables}\n```\n\n"
    )


def written(page: str) -> str:
    """Return a page with the figures of the files in its blocks."""
    page = _BLOCK.sub(lambda match: f"{match[1]}{match[2]}\n{block(match[1])}", page)
    return _README_TABLE.sub(lambda _: "\n" + "\n".join(table_lines(ROWS)) + "\n\n", page)


def linked(page: str) -> str:
    """Return a page whose links to cells have the texts of these cells."""

    def text(match: re.Match[str]) -> str:
        keys = match[2].split(" > ")
        return f"[{cell(load(RESULTS / match[1]), *([''] * (3 - len(keys))), *keys)}]"

    return _CELL.sub(text, page)


def chart(row: Row) -> str:
    """Return a bar chart of a row as SVG: the first epoch with start-up, the fastest library first."""
    content = load(row.file)
    found = {label.replace("`", ""): rates(content, row, rival) for rival, label in RIVALS.items()}
    early = {RIVALS[rival].replace("`", "") for rival in RIVALS if is_early(content, row.title, rival)}
    first = sorted(((values[0], label) for label, values in found.items() if values), reverse=True)
    limit = number(cell(content, row.title, LIMIT, EPOCHS[0]))
    title = f"{row.label[0].upper()}{row.label[1:]}: images/s in the first epoch"
    scale = _BAR_PX / max(limit, first[0][0])
    bottom = _TOP_PX + _STEP_PX * len(first)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT_PX + _BAR_PX + 90} {bottom + 44}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="15" role="img">',
        f"  <title>{title}, start-up included</title>",
        "  <style>text { fill: #222; } .page { fill: #fff; } .brand { fill: #1f6feb; } .other { fill: #667180; }",
        "    .in { fill: #fff; font-weight: bold; }",
        "    line { stroke: #c62828; stroke-width: 2; stroke-dasharray: 6 4; } .limit { fill: #c62828; }",
        "    @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .page { fill: #161b22; }",
        "      .limit { fill: #ff7b72; } line { stroke: #ff7b72; } }</style>",
        '  <rect class="page" width="100%" height="100%" rx="8"/>',
        f'  <text x="20" y="30" font-weight="bold">{title}, start-up included</text>',
    ]
    for at, (rate, label) in enumerate(first):
        y = _TOP_PX + _STEP_PX * at
        kind = "brand" if label.startswith("Brand") else "other"
        shown = f"~ {rate:,.0f}" if label in early else f"{rate:,.0f}"
        lines += [
            f'  <text x="{_LEFT_PX - 12}" y="{y + 17}" text-anchor="end">{label}</text>',
            f'  <rect class="{kind}" x="{_LEFT_PX}" y="{y}" width="{rate * scale:.0f}" height="24" rx="3"/>',
            f'  <text class="in" x="{_LEFT_PX + rate * scale - 8:.0f}" y="{y + 17}" text-anchor="end">{shown}</text>',
        ]
    x = _LEFT_PX + limit * scale
    below = bottom + 20
    lines += [
        f'  <line x1="{x:.0f}" y1="{_TOP_PX - 8}" x2="{x:.0f}" y2="{bottom}"/>',
        f'  <text class="limit" x="{x:.0f}" y="{below}" text-anchor="end">limit of the storage: {limit:,.0f}</text>',
        f'  <text x="20" y="{below}" font-size="13">~: stopped early. Measured {content["date"]}.</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def rows_of(file: Path) -> list[Row]:
    """Return a row for each table of a file of `training_reads`."""
    return [Row(table["title"], file, table["title"]) for table in load(file)["tables"]]


def main() -> None:
    """Print the table, or write it into the pages."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.honest_table", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("results", type=Path, nargs="*", help="files of `training_reads --out`")
    parser.add_argument("--write", action="store_true", help="write the pages and the chart")
    arguments = parser.parse_args()
    if arguments.write:
        for page in (ROOT / "README.md", ROOT / "bench" / "README.md"):
            page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
        for page in LINKED:
            page.write_text(linked(page.read_text(encoding="utf-8")), encoding="utf-8")
        CHART.write_text(chart(ROWS[0]), encoding="utf-8")
        return
    rows = [row for file in arguments.results for row in rows_of(file)]
    harness.show("\n".join(table_lines(rows or ROWS)))


if __name__ == "__main__":
    main()
