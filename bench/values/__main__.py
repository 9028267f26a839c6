"""Are the values of Brand after a conversion those of the tools that read the same sources? datasets, torchvision, ...

Each source is converted by the command line (or by `brand.pack`), every sample is read, and each of its values is
compared with the value that the other tool yields. The columns: samples of the tool or of Brand; those whose values are
all equal; those with the value of a second tool, where the tools differ (libsndfile and FFmpeg); those with a
difference that the conversion says (in its report or its refusal); those with a difference that nothing says, which
must be none. Below the table: the first difference of each source, and the words that say it.

    python -m bench.values --work SCRATCH [--data DATA] [--out FILE] [--only WORD ...]
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench import harness
from bench.values.compare import Outcome, outcome

PARTS: Final = ("huggingface", "folders", "tars", "tables", "sounds")
_COUNTS: Final = ("samples", "equal", "second", "said", "silent")
_SHOWN: Final = 100
"""Characters of a difference that the table shows; the file of results has all."""
_RIVALS: Final = tuple(
    harness.Rival(name, name, name)
    for name in ("datasets", "torchvision", "timm", "webdataset", "pandas", "pyarrow", "soundfile", "av", "pillow")
)


def main() -> None:
    """Run all cases, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.values", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--data", type=Path, help="folder with real images/, audio/, text/, fashion-mnist/")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--only", nargs="*", default=[], help="words: cases with one of them in tool or source")
    parser.add_argument("--part", nargs="*", choices=PARTS, default=PARTS, help="kinds of sources")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found: list[tuple[str, str, Outcome]] = []
    for part in [*given.part, *(["real"] if given.data else [])]:
        root = given.work / part
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        found_cases = importlib.import_module(f"bench.values.{part}").cases
        for case in found_cases(root, given.data) if part == "real" else found_cases(root):
            if given.only and not any(word in f"{case.tool} {case.source}" for word in given.only):
                continue
            counts = outcome(case, root)
            found.append((case.tool, case.source, counts))
            harness.progress(
                f"{case.tool} | {case.source} | {counts.equal} of {counts.samples} equal, {counts.silent} silent"
            )
            for difference in counts.differences:
                harness.progress(f"    {difference}")
    _show(found)
    if given.out:
        results: Any = [{"tool": tool, "source": source, **asdict(counts)} for tool, source, counts in found]
        harness.save(given.out, __doc__, {}, _RIVALS, results)
    sys.exit(any(counts.silent for _, _, counts in found))


def _show(found: list[tuple[str, str, Outcome]]) -> None:
    tools = [*dict.fromkeys(tool for tool, _, _ in found), "all"]
    rows = []
    for tool in tools:
        counts = [each for name, _, each in found if tool in (name, "all")]
        rows.append([tool, f"{len(counts):,}", *(f"{sum(getattr(c, name) for c in counts):,}" for name in _COUNTS)])
    columns = [
        "tool",
        "sources",
        "samples",
        "equal",
        "as the second tool",
        "different and said",
        "different and silent",
    ]
    harness.show("values\n" + harness.table(columns, rows))
    differ = [
        [
            f"{tool}: {source}",
            f"{c.equal:,} of {c.samples:,}",
            c.differences[0].rpartition("brand: ")[2][:_SHOWN],
            c.words[:_SHOWN],
        ]
        for tool, source, c in found
        if c.differences
    ]
    if differ:
        cells = [[cell.replace("|", "/").replace("\n", " ").strip() for cell in row] for row in differ]
        harness.show("\ndifferences\n" + harness.table(["source", "equal", "first difference", "said"], cells))


if __name__ == "__main__":
    main()
