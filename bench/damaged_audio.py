"""Does a damaged audio file decode to other values without a word? Real files in WAV, Ogg (Vorbis), FLAC and MP3.

    python -m bench.damaged_audio --data DATA/audio --count 1250 --out bench/results/damaged-audio.json

FLAC and MP3 are made of the WAV files by libsndfile. A file is damaged as storage does: a bit flips, the end is
missing, two sectors change places, a sector lies elsewhere (`tests.tools.damage`), a sector is lost, and what follows
moves forward. All files of a kind are converted as a folder with `--validate --on-error skip`, and decoded by index.
The columns, with the whole file beside each:

- `same`: the same values.
- `error`: left out of the data set, with the file's name, or an error that names it when it is decoded.
- `said`: other values, or fewer of them, and the report counts the file: cut, joined, empty, of unknown duration, or
  with a damaged head.
- `silent, same length`, `silent, shorter`, `silent, longer`: other values, and nothing is said.
- `duration`: the field `duration` is not the length of the values; must be 0.

`libsndfile` is how many damaged files `soundfile.read` returns with another length without a word.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import soundfile

from bench import harness
from brand.chunker import Options, convert_audio
from brand.errors import DecodeError
from brand.formats.audio import Waveform, decode_audio
from brand.formats.audiostreams import has_damaged_head, is_cut, is_joined
from brand.formats.noticed import CUT, DAMAGED_HEAD, EMPTY, JOINED, UNKNOWN_DURATIONS
from brand.torch import BrandDataset
from tests.tools.damage import KINDS, SECTORS, any_damage

FORMS: Final = ("wav", "ogg", "flac", "mp3")
_WAYS: Final = (*KINDS, "gap")
_LARGEST: Final = 120_000
_WHOLE: Final = 3
_ENDS: Final = ("same", "error", "said", "silent, same length", "silent, shorter", "silent, longer", "duration")
_SAID: Final = (CUT, JOINED, EMPTY, UNKNOWN_DURATIONS, DAMAGED_HEAD)


def real_files(data: Path, form: str, rng: random.Random) -> Iterator[bytes]:
    """Yield real files of a form, one after another, again and again."""
    paths = sorted(data.rglob("*.ogg" if form == "ogg" else "*.wav"))
    while True:
        path = rng.choice(paths)
        found = path.read_bytes()
        if len(found) > _LARGEST:
            continue
        if form in ("flac", "mp3"):
            wave, rate = soundfile.read(io.BytesIO(found), dtype="int16")
            file = io.BytesIO()
            soundfile.write(file, wave, rate, format=form.upper())
            found = file.getvalue()
        yield found


def damaged(whole: bytes, way: str, rng: random.Random) -> bytes:
    """Return a damaged file."""
    if way != "gap":
        return any_damage({"file": whole}, rng, way).files["file"]
    size = rng.choice(SECTORS)
    at = rng.randrange(max(1, len(whole) // size)) * size
    return whole[:at] + whole[at + size :]


def campaign(data: Path, form: str, count: int, folder: Path) -> dict[str, Any]:
    """Damage files of a form. Return the counts."""
    rng = random.Random(form)
    files, wholes, ways = dict[str, bytes](), dict[str, bytes](), dict[str, str]()
    source = real_files(data, form, rng)
    (folder / "in").mkdir()
    for number in range(count + _WHOLE):
        name, way = f"{number:05}.{form}", _WAYS[number % len(_WAYS)]
        wholes[name] = next(source)
        ways[name] = "none" if number >= count else way
        files[name] = wholes[name] if number >= count else damaged(wholes[name], way, rng)
        (folder / "in" / name).write_bytes(files[name])
    options = Options(validate=True, skip_errors=True, jobs=1, labels=False)
    report = convert_audio(folder / "in", folder / "set.brand", options)
    skipped = {problem.path for problem in report.skipped}
    assert len(skipped) == len(report.skipped)
    assert skipped <= files.keys()
    assert report.samples == len(files) - len(skipped)
    counts, told, other = Counter[tuple[str, str]](), Counter[str](), 0
    for name in sorted(skipped):
        counts[ways[name], "error"] += 1
    dataset = BrandDataset(folder / "set.brand", server="none")
    for index in range(len(dataset)):
        name, found = _decoded(dataset, index)
        facts = _facts(files[name], found)
        told.update(facts)
        counts[ways[name], _end(wholes[name], found, said=bool(facts))] += 1
        if found is not None and not _has_length(dataset, index, found):
            counts[ways[name], "duration"] += 1
    reported = {fact.what: fact.count for fact in report.noticed if fact.what in _SAID}
    assert reported == dict(told), (reported, told)
    for name, file in files.items():
        other += _libsndfile_differs(wholes[name], file)
    rows = {way: {end: n for (each, end), n in sorted(counts.items()) if each == way} for way in (*_WAYS, "none")}
    total = Counter[str]()
    for (way, end), n in counts.items():
        total[end] += n if way != "none" else 0
    return {"all": dict(total), "reported": reported, "libsndfile": other, "by damage": rows}


def _decoded(dataset: BrandDataset, index: int) -> tuple[str, Waveform | None]:
    try:
        sample = dataset[index]
    except DecodeError as error:
        return Path(str(error.path)).name, None
    return Path(sample["key"]).name, sample["audio"]


def _facts(file: bytes, found: Waveform | None) -> list[str]:
    """Return what the report counts this file among."""
    has = {
        CUT: is_cut(file),
        JOINED: is_joined(file),
        DAMAGED_HEAD: has_damaged_head(file),
        EMPTY: found is not None and not found.samples.shape[1],
        UNKNOWN_DURATIONS: found is None,
    }
    return [fact for fact, is_so in has.items() if is_so]


def _end(whole: bytes, found: Waveform | None, *, said: bool) -> str:
    if found is None:
        return "error"
    samples, rate = decode_audio(whole)
    if rate == found.rate and np.array_equal(samples, found.samples):
        return "same"
    if said:
        return "said"
    missing = samples.shape[1] - found.samples.shape[1]
    return f"silent, {'same length' if not missing else 'shorter' if missing > 0 else 'longer'}"


def _has_length(dataset: BrandDataset, index: int, found: Waveform) -> bool:
    stated = float(dataset[index]["duration"])
    return math.isclose(stated, found.samples.shape[1] / found.rate, rel_tol=1e-6, abs_tol=1e-6)


def _libsndfile_differs(whole: bytes, file: bytes) -> bool:
    try:
        return len(soundfile.read(io.BytesIO(file))[0]) != len(soundfile.read(io.BytesIO(whole))[0])
    except (soundfile.SoundFileError, ValueError, OverflowError, TypeError):
        return False


def main() -> None:
    """Damage files of each form, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1250, help="damaged files of each form")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = {}
    for form in given.forms:
        with tempfile.TemporaryDirectory() as folder:
            found[form] = campaign(given.data, form, given.count, Path(folder))
        sys.stdout.write(f"{form:5} {json.dumps(found[form])}\n")
        sys.stdout.flush()
    show(found, given.count, given.out)


def show(found: dict[str, dict[str, Any]], count: int, out: Path | None) -> None:
    """Print a table of all forms, and write it as JSON."""
    rows = [
        [form, *(str(each["all"].get(end, 0)) for end in _ENDS), str(each["libsndfile"])]
        for form, each in found.items()
    ]
    harness.show("Damaged files\n" + harness.table(["form", *_ENDS, "libsndfile"], rows))
    if out is not None:
        harness.save(out, __doc__, {"damaged files of each form": count}, [], found)


if __name__ == "__main__":
    main()
