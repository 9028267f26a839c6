#!/usr/bin/env python3
"""Rebuild the small real data of this folder from packages of Debian.

    python pick.py DATA GCIN_VOICE_DEB [OUT]

DATA is the folder made by ``get_real_data.sh DATA images fashion-mnist audio images-webp``: files of
Debian packages under ``images/``, ``fashion-mnist/``, ``audio/`` and ``images-webp/``, and the packages'
copyright files under ``LICENSES/``. GCIN_VOICE_DEB is Debian's package ``gcin-voice`` (the Ogg Vorbis
speech) as ``apt-get download gcin-voice`` fetches it. OUT is the folder to write to; the default is the
folder of this script.

Nothing is chosen at random and nothing is re-encoded: every image and every recording is a byte-for-byte copy,
and the same input gives the same output. ``fashion-mnist-small.zip``, ``clips/``, ``photos/``,
``SHA256SUMS`` and the licence texts of packages are replaced; ``README.md`` and the two licence
texts written by hand (``LICENSES/apache-2.0.txt``, ``LICENSES/gcompris.txt``) are not changed. Python 3.10
or newer, standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

FASHION_PER_CLASS = {"train": 300, "test": 60}

# The same five prompts by five speakers, and one recording of each without a transcript.
WAV_SPEAKERS = {
    "en_US_f_Allison": "beep",
    "es_MX_f_Allison": "digits__20-and",
    "fr_CA_f_June": "digits__et",
    "it_IT_m_Carlo": "digits__millions",
    "ru_RU_f_IvrvoiceRU": "letters__aa",
}
WAV_PROMPTS = ("digits__1", "digits__2", "digits__3", "hello-world", "vm-goodbye")

# The Mandarin numerals from 0 to 10: name here, folder in gcin-voice (Bopomofo and tone; none is tone 1).
OGG_SPEAKER = "zh_TW_ChuLo"
OGG_SYLLABLES = {
    "ling2": "ㄌㄧㄥ2",
    "yi1": "ㄧ",
    "er4": "ㄦ4",
    "san1": "ㄙㄢ",
    "si4": "ㄙ4",
    "wu3": "ㄨ3",
    "liu4": "ㄌㄧㄡ4",
    "qi1": "ㄑㄧ",
    "ba1": "ㄅㄚ",
    "jiu3": "ㄐㄧㄡ3",
    "shi2": "ㄕ2",
}
OGG_PATH = "./usr/share/gcin-voice/ogg/{syllable}/5.ogg"  # 5.ogg is the voice under CC-BY-3.0

_FISHES = "images-webp/animals/categorization__images__fishes__"
_TOOLS = "images-webp/tools/categorization__images__tools__"
_WORLD = "images-webp/animals/explore_world_animals__animals__"
_ENERGY = "images-webp/energy/categorization__images__renewable__"
_CLIPART = "images/animals/openclipart__"
_SKIMAGE = "images/photos_cv/skimage__"
_OPENCV = "images/photos_cv/opencv__data__"
_FIGURES = "images/figures_cv/opencv__"

# Path under photos/: path under DATA.
PHOTOS = {
    "animals/armadillo.png": _CLIPART + "armadillo_architetto_fra_01.png",
    "animals/bat.png": _CLIPART + "birds__contour_bat.png",
    "animals/fish25.webp": _FISHES + "fish25.webp",
    "animals/fish28.webp": _FISHES + "fish28.webp",
    "animals/fish4.webp": _FISHES + "fish4.webp",
    "animals/fish8.webp": _FISHES + "fish8.webp",
    "animals/fox.png": _CLIPART + "mammals__contour_fox.png",
    "animals/horse.png": _SKIMAGE + "horse.png",
    "animals/moose.webp": _WORLD + "moose.webp",
    "animals/yellow_gourami.png": _CLIPART + "fish__yellow_gourami_01.png",
    "documents/notes.png": _OPENCV + "notes.png",
    "documents/page.png": _SKIMAGE + "page.png",
    "documents/text.png": _SKIMAGE + "text.png",
    "documents/text_defocus.jpg": _OPENCV + "text_defocus.jpg",
    "documents/text_motion.jpg": _OPENCV + "text_motion.jpg",
    "markers/board.jpg": _FIGURES + "board.jpg",  # a PNG inside, as upstream ships it
    "markers/left01.jpg": _OPENCV + "left01.jpg",
    "markers/left05.jpg": _OPENCV + "left05.jpg",
    "markers/right05.jpg": _OPENCV + "right05.jpg",
    "markers/singlemarkersoriginal.jpg": _FIGURES + "singlemarkersoriginal.jpg",
    "outdoors/rocket.jpg": _SKIMAGE + "rocket.jpg",
    "outdoors/solar2.webp": _ENERGY + "solar2.webp",
    "outdoors/windmill.webp": _ENERGY + "windmill.webp",
    "tools/anvil.png": "images/tools/openclipart__blacksmith_anvil_ganson.png",
    "tools/clock_motion.png": _SKIMAGE + "clock_motion.png",
    "tools/hammer.png": "images/tools/openclipart__blacksmith_hammer_ganson.png",
    "tools/hammer7.webp": _TOOLS + "hammer7.webp",
    "tools/key.png": "images/tools/openclipart__key_jordan_wiens_01.png",
    "tools/measuringTape1.webp": _TOOLS + "measuringTape1.webp",
    "tools/scissors1.webp": _TOOLS + "scissors1.webp",
    "tools/tweezer1.webp": _TOOLS + "tweezer1.webp",
}

# Name under LICENSES/: Debian package whose copyright file it is (gcin-voice comes from its own package).
LICENSES = {
    "asterisk-core-sounds.txt": "asterisk-core-sounds-en-wav",
    "fashion-mnist.txt": "dataset-fashion-mnist",
    "openclipart.txt": "openclipart-png",
    "opencv.txt": "opencv-doc",
    "scikit-image.txt": "python3-skimage",
}


def evenly(names: list[str], count: int) -> list[str]:
    """Pick ``count`` of ``names`` at even steps, the first one included."""
    if len(names) < count:
        raise ValueError(f"{count} wanted, and there are only {len(names)}")
    return [names[i * len(names) // count] for i in range(count)]


def fashion_entries(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name in the archive, PNG bytes) of the picked Fashion-MNIST images."""
    for part, count in FASHION_PER_CLASS.items():
        for folder in sorted(p for p in (source / part).iterdir() if p.is_dir()):
            for name in evenly(sorted(p.name for p in folder.glob("*.png")), count):
                yield f"{part}/{folder.name}/{name}", (folder / name).read_bytes()


def zip_bytes(entries: list[tuple[str, bytes]], method: int) -> bytes:
    """Make a ZIP file that depends on nothing but the entries and the method."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in sorted(entries):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            info.create_system = 3  # Unix, wherever this runs
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data, compresslevel=9)
    return buffer.getvalue()


def write(path: Path, data: bytes) -> None:
    """Write a file, and make its folders first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def tidy_text(data: bytes) -> bytes:
    """Drop white space at line ends and blank lines at the end of a text."""
    lines = [line.rstrip() for line in data.decode("utf-8").splitlines()]
    return ("\n".join(lines).rstrip("\n") + "\n").encode("utf-8")


def deb_members(deb: Path, wanted: set[str]) -> dict[str, bytes]:
    """Read the wanted files of a Debian package: an ar archive with a ``data.tar.xz`` in it."""
    raw = deb.read_bytes()
    if not raw.startswith(b"!<arch>\n"):
        raise ValueError(f"{deb.name} is not a Debian package")
    at = 8
    while at + 60 <= len(raw):
        name = raw[at : at + 16].decode("ascii").strip().rstrip("/")
        size = int(raw[at + 48 : at + 58])
        at += 60
        if name == "data.tar.xz":
            found: dict[str, bytes] = {}
            data = io.BytesIO(raw[at : at + size])
            with tarfile.open(fileobj=data, mode="r:xz", encoding="utf-8") as tar:
                for member in tar:
                    file = tar.extractfile(member) if member.name in wanted else None
                    if file is not None:
                        found[member.name] = file.read()
            if missing := wanted - found.keys():
                raise ValueError(f"{deb.name} lacks {sorted(missing)}")
            return found
        at += size + size % 2
    raise ValueError(f"{deb.name} has no data.tar.xz")


def make_fashion(data: Path, out: Path) -> None:
    """Write fashion-mnist-small.zip, stored or deflated, whichever is smaller."""
    entries = list(fashion_entries(data / "fashion-mnist"))
    archives = [zip_bytes(entries, method) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
    write(out / "fashion-mnist-small.zip", min(archives, key=len))


def make_clips(data: Path, spoken: dict[str, bytes], out: Path) -> None:
    """Write clips/<speaker>/* and clips/transcripts.tsv; ``spoken`` holds files of gcin-voice."""
    texts: dict[str, str] = {}
    with open(data / "audio" / "transcripts.tsv", encoding="utf-8") as file:
        for line in file:
            path, _speaker, _language, text = line.rstrip("\n").split("\t")
            texts[path] = text
    said: dict[str, str] = {}
    for speaker, silent in WAV_SPEAKERS.items():
        for prompt in (*WAV_PROMPTS, silent):
            path = f"{speaker}/{prompt}.wav"
            write(out / path, (data / "audio" / path).read_bytes())
            if prompt != silent:
                said[path] = texts[path]
            elif path in texts:
                raise ValueError(f"{path} has a transcript, and should have none")
    for name, syllable in OGG_SYLLABLES.items():
        path = f"{OGG_SPEAKER}/{name}.ogg"
        write(out / path, spoken[OGG_PATH.format(syllable=syllable)])
        said[path] = syllable
    rows = ["path\ttext", *(f"{path}\t{text}" for path, text in sorted(said.items()))]
    write(out / "transcripts.tsv", ("\n".join(rows) + "\n").encode("utf-8"))


def make_sums(out: Path, parts: list[str]) -> None:
    """Write SHA256SUMS of all files that were made, for ``sha256sum -c``."""
    made = [out / part for part in parts]
    files = [f for part in made for f in (part.rglob("*") if part.is_dir() else [part]) if f.is_file()]
    names = sorted(f.relative_to(out).as_posix() for f in files)
    rows = [f"{hashlib.sha256((out / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    write(out / "SHA256SUMS", "".join(rows).encode("utf-8"))


def main() -> None:
    """Parse the command line and make all data."""
    parser = argparse.ArgumentParser(description="Rebuild examples/data from the packages it comes from.")
    parser.add_argument("data", type=Path, help="folder laid down by get_real_data.sh")
    parser.add_argument("gcin_voice", type=Path, help="the Debian package gcin-voice_*.deb")
    parser.add_argument("out", type=Path, nargs="?", default=Path(__file__).resolve().parent)
    args = parser.parse_args()
    data: Path = args.data
    out: Path = args.out

    copyright_file = "./usr/share/doc/gcin-voice/copyright"
    wanted = {OGG_PATH.format(syllable=syllable) for syllable in OGG_SYLLABLES.values()}
    spoken = deb_members(args.gcin_voice, wanted | {copyright_file})

    for part in ("clips", "photos"):
        shutil.rmtree(out / part, ignore_errors=True)
    make_fashion(data, out)
    make_clips(data, spoken, out / "clips")
    for name, source in PHOTOS.items():
        write(out / "photos" / name, (data / source).read_bytes())
    for name, package in LICENSES.items():
        write(out / "LICENSES" / name, tidy_text((data / "LICENSES" / f"{package}.copyright").read_bytes()))
    write(out / "LICENSES" / "gcin-voice.txt", tidy_text(spoken[copyright_file]))
    licenses = [f"LICENSES/{name}" for name in sorted((*LICENSES, "gcin-voice.txt"))]
    make_sums(out, ["fashion-mnist-small.zip", "clips", "photos", *licenses])


if __name__ == "__main__":
    main()
