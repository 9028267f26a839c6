"""Which public data serve as images and texts for the benchmarks? Packages of Debian that everybody can download.

    python -m bench.public_data --out DATA

Downloads packages with `apt-get download` (nothing is installed, root is not needed), and makes of them

- DATA/images/photos_scenery/*.jpg: photographs (wallpapers of the desktops Lomiri and MATE);
- DATA/images/<theme>/*.png: drawings with transparent ground (stamps of Tux Paint);
- DATA/text/wordnet.jsonl: English texts, each of two definitions of WordNet that follow each other.

Needs apt-get and dpkg-deb, 250 MB of downloads and 500 MB of disk. The published figures are from a larger collection
of the same kind (8,147 images, 397,592 texts), so compare ratios within one run, not rates. The packages' copyright
files are in DATA/licences.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.sources import Record

PHOTOGRAPHS: Final = ("lomiri-wallpapers-16.04", "lomiri-wallpapers-20.04", "mate-backgrounds")
DRAWINGS: Final = ("tuxpaint-stamps-default",)
TEXTS: Final = ("wordnet-base",)
_LEAST_BYTES: Final = 50_000
"""A smaller JPEG file of a package of wallpapers is a preview."""


def unpacked(package: str, folder: Path) -> Path:
    """Download a package and unpack it below a folder. Return the folder of the package."""
    target = folder / package
    target.mkdir()
    subprocess.run(["apt-get", "-q", "download", package], cwd=target, check=True)
    (file,) = target.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", str(file), str(target)], check=True)
    return target


def records(lines: Iterator[str], label: str) -> Iterator[Record]:
    """Yield texts from the lines of a file of WordNet: the definitions behind the ` | ` of two lines."""
    glosses = (line.partition(" | ")[2].strip() for line in lines if not line.startswith("  "))
    for number, pair in enumerate(zip(glosses, glosses, strict=False)):
        yield {"id": f"{label}-{number}", "lang": "en", "label": label, "text": "\n".join(pair)}


def photographs(package: Path) -> list[Path]:
    """Return the JPEG files of a package, without links and previews."""
    files = sorted(file for file in package.rglob("*.jpg") if file.is_file() and not file.is_symlink())
    return [file for file in files if file.stat().st_size >= _LEAST_BYTES]


def make(out: Path, folder: Path) -> None:
    """Make the data of packages that are unpacked below a folder."""
    scenery = out / "images" / "photos_scenery"
    scenery.mkdir(parents=True)
    for package in PHOTOGRAPHS:
        for file in photographs(folder / package):
            shutil.copyfile(file, scenery / f"{package}-{file.name}")
    for package in DRAWINGS:
        stamps = folder / package / "usr" / "share" / "tuxpaint" / "stamps"
        for file in sorted(stamps.rglob("*.png")):
            theme = out / "images" / file.relative_to(stamps).parts[0]
            theme.mkdir(exist_ok=True)
            shutil.copyfile(file, theme / "-".join(file.relative_to(stamps).parts[1:]))
    (out / "text").mkdir()
    with (out / "text" / "wordnet.jsonl").open("w", encoding="utf-8") as target:
        for package in TEXTS:
            for file in sorted((folder / package / "usr" / "share" / "wordnet").glob("data.*")):
                with file.open(encoding="utf-8") as source:
                    for record in records(source, file.suffix[1:]):
                        target.write(json.dumps(record, ensure_ascii=False) + "\n")
    (out / "licences").mkdir()
    for package in (*PHOTOGRAPHS, *DRAWINGS, *TEXTS):
        for file in (folder / package / "usr" / "share" / "doc").glob("*/copyright"):
            shutil.copyfile(file, out / "licences" / f"{package}.txt")


def main() -> None:
    """Download and make the data."""
    parser = argparse.ArgumentParser(prog="python -m bench.public_data", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a new folder: DATA of the other benchmarks")
    out = parser.parse_args().out
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=out) as temporary:
        for package in (*PHOTOGRAPHS, *DRAWINGS, *TEXTS):
            unpacked(package, Path(temporary))
        make(out, Path(temporary))


if __name__ == "__main__":
    main()
