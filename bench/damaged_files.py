"""Does each damaged file end as a sample, as a skip with its name, or as an error that names it? Brand.

Files of some 28 kinds of images and audio are damaged by chance (flipped bits, zeros, cut short; equal in every run).
They are converted as a folder, in a tar file and in a Parquet file, with `--on-error skip`, and are trained on with
`on_error="skip"`; then each is read by its index. Tars, tables, shards and indexes of some 25 kinds are damaged
themselves. The columns say how many of the files ended as a sample, as a skip, as an error with its name. Any other
exception ends the run.

    python -m bench.damaged_files [--count 300] [KIND ...]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.tools import spoiled

_SOURCES = Path(__file__).parents[1] / "tests/chunker/sources"


def main() -> None:
    """Damage files, and print a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="damaged files of each kind")
    parser.add_argument("kinds", nargs="*")
    given = parser.parse_args()
    containers = spoiled.container_kinds(_SOURCES)
    for name in given.kinds or [*spoiled.media_kinds(), *containers]:
        with tempfile.TemporaryDirectory() as folder:
            if name in containers:
                ended = {"container": spoiled.container(containers[name], given.count, Path(folder))}
            else:
                files = spoiled.files_of(name, given.count)
                ended = {way: run(name, files, Path(folder)) for way, run in spoiled.WAYS.items()}
        told = (
            f"{way}: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) for way, counts in ended.items()
        )
        print(f"{name:24}", " | ".join(told), flush=True)


if __name__ == "__main__":
    main()
