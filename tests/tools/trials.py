"""One trial: a data set is damaged. Does `verify` tell, and do exact reads and draws never give a wrong sample?

    make_sets -> Subject (a folder, its files and samples as they should be) -> run_trial(subject, seed) -> Trial

The sets hold what a data set may hold: pictures, records packed with a dictionary, all codecs, clips with transcripts
in `extras.zip` and a list of skipped files, and a share. A trial opens the data set before or after the damage. It
reads all samples exactly, and draws two epochs from a data server in a thread: one with `on_error="raise"`, one with
`"skip"`, each with other `fields`.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import shutil
import tempfile
import wave
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import brand
from brand.chunker import Options, convert_audio, convert_images
from brand.errors import BrandError, ElsewhereError, FormatError
from brand.orders import Stripes
from brand.orders.base.owners import owner_of_chunk
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.partition import partition
from brand.storage.maintenance.verify import verify
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandSampler
from tests.tools.damage import any_damage, read_files, write_files

BATCH: Final = 12
_STATIC: Final = ("index", "key")
"""Fields that every sample has."""

Sample = dict[str, Any]


@dataclass
class Trial:
    """What one damage led to."""

    number: int
    kind: str = ""
    story: str = ""
    live: bool = False
    """Whether the data set was open when it was damaged."""
    told: int = 0
    """Errors that `verify` found."""
    read: int = 0
    """Samples that were read or drawn, and right."""
    refused: int = 0
    """Reads and draws that ended in an error of Brand's."""
    replaced: int = 0
    """Samples that others replaced, as the statistics list them."""
    wrong: list[str] = field(default_factory=list)
    """Samples that were delivered, but are wrong."""
    crashed: str = ""
    """Any error that is not Brand's."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


class Subject:
    """A data set that is damaged and mended again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, read_files(folder)
        data = StoredDataSet(folder)
        self.here = [i for i in range(len(data)) if data.here(np.array([data.chunk_of(i)]))[0]]
        """Samples that are in this folder: all, unless it is a share."""
        self.whole = data.share is None
        self.names = data.header.schema.names
        self.index_at = data.rows(0, len(data))["index"].tolist()
        """Index of the sample at each place."""
        self.samples = {i: {"key": str(i)} | data.sample(i) | {"index": i} for i in self.here}

    def mend(self, names: Sequence[str]) -> None:
        """Restore files as they were. Each is a new file, because the old one may still be mapped."""
        write_files(self.folder, {name: self.files[name] for name in names})


def make_sets(folder: Path) -> None:
    """Write the sets, each into a folder of its own."""
    source = folder / "source"
    for number in range(37):
        path = source / "pictures" / f"class {number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_picture(number))
    convert_images(source / "pictures", folder / "pictures", Options(chunk_size=8, jobs=1))
    notes = [
        {"text": f"The {_colour(k)} note number {k} says: {k * k} is the square.", "number": k} for k in range(130)
    ]
    schema = {"text": "str", "number": "int"}
    brand.pack(notes, folder / "notes", schema, chunk_size=45, compression="zstd", jobs=1)
    rng = np.random.default_rng(0)
    mixed = [
        {
            "a": k,
            "x": k / 3,
            "j": {"k": [k]},
            "b": rng.bytes(k * 9),
            "n": rng.integers(0, 9, (k % 4, 3)),
            "key": f"f/{k}",
        }
        for k in range(40)
    ]
    codecs = {"a": "int", "x": "float", "j": "json", "b": "bytes", "n": "ndarray", "key": "str"}
    brand.pack(mixed, folder / "mixed", codecs, chunk_size=8, compression="none", jobs=1)
    for number in range(24):
        path = source / "clips" / f"speaker {number % 2}" / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_clip(number))
        path.with_suffix(".txt").write_text(f"this is what clip number {number} says")
    (source / "clips" / "speaker 0" / "broken.wav").write_bytes(_clip(3)[:30])
    convert_audio(source / "clips", folder / "clips", Options(chunk_size=6, jobs=1, skip_errors=True))
    owners = owner_of_chunk(5, 1, 2)
    partition(folder / "pictures", [folder / "share", folder / "other"], owners, 1, copy=True)


SETS: Final = ("pictures", "notes", "mixed", "clips", "share")


def run_trial(subjects: Sequence[Subject], seed: int, number: int) -> Trial:
    """Damage one of the sets, look at it in all ways, and mend it."""
    rng = random.Random(f"{seed}/{number}")
    subject = rng.choice(subjects)
    damage = any_damage(subject.files, rng)
    live = rng.random() < 0.3
    story = f"{subject.folder.name}: {damage.story}" + (", while open" if live else "")
    trial = Trial(number, damage.kind, story, live)
    try:
        if live:
            _look(subject, trial, rng, lambda: damage.apply(subject.folder, in_place=True))
            trial.told = len(told(subject.folder))
        else:
            damage.apply(subject.folder)
            trial.told = len(told(subject.folder))
            _look(subject, trial, rng, lambda: None)
    except BrandError:  # the data set does not open
        trial.refused += 1
    except Exception as error:  # noqa: BLE001 - the trial looks for errors that are not Brand's
        trial.crashed = f"{type(error).__name__}: {error}"
    finally:
        subject.mend(list(damage.files))
    return trial


def told(folder: Path) -> list[FormatError]:
    """All that `verify` finds wrong."""
    try:
        return list(itertools.islice((error for step in verify(folder) for error in step.errors), 1000))
    except FormatError as error:
        return [error]


def _look(subject: Subject, trial: Trial, rng: random.Random, strike: Callable[[], object]) -> None:
    """Read and draw all samples; `strike` is called when half of that is done."""
    fields, more = _any_fields(subject, rng), _any_fields(subject, rng)
    with ExitStack() as stack:
        options: dict[str, Any] = {"decode": False, "order": rng.choice(["slots", Stripes(length=2, buffer=0.6)])}
        if subject.whole:
            memory = rng.choice([0.6, 1.0])
            server = stack.enter_context(running_server(subject.folder, memory=memory, depth=2))
            options["server"] = server.address
        raising = BrandDataset(subject.folder, fields=fields, on_error="raise", **options)
        skipping = BrandDataset(subject.folder, fields=more, on_error="skip", **options)
        half = len(subject.here) // 2
        _read(subject, trial, skipping, subject.here[:half])
        if not subject.whole:
            strike()
        else:
            _draw(subject, trial, raising, rng.randrange(1000), strike, skips=False)
            _draw(subject, trial, skipping, rng.randrange(1000), lambda: None, skips=True)
        _read(subject, trial, raising, subject.here[::-1])
        raising._source.port.client.close()
        skipping._source.port.client.close()


def _read(subject: Subject, trial: Trial, data_set: BrandDataset, indices: Sequence[int]) -> None:
    """Read samples exactly: in batches, and each by itself where a batch is refused."""
    for first in range(0, len(indices), BATCH):
        batch = indices[first : first + BATCH]
        try:
            _compare(subject, trial, data_set, batch, data_set.__getitems__(batch))
        except (FormatError, ElsewhereError):
            for index in batch:
                try:
                    _compare(subject, trial, data_set, [index], [data_set[index]])
                except (FormatError, ElsewhereError):
                    trial.refused += 1


def _compare(
    subject: Subject, trial: Trial, data_set: BrandDataset, indices: Sequence[int], found: Sequence[Any]
) -> None:
    for index, sample in zip(indices, found, strict=True):
        if _same(_projected(subject.samples[index], data_set.fields), sample):
            trial.read += 1
        else:
            trial.wrong.append(f"read of sample {index}, fields {data_set.fields}: {sample!r:.200}")


def _draw(
    subject: Subject, trial: Trial, data_set: BrandDataset, seed: int, strike: Callable[[], object], *, skips: bool
) -> None:
    """Draw an epoch. If the data set `skips` damaged samples, others replace them, and the statistics list these."""
    sampler = BrandSampler(data_set, seed=seed)
    planned = [subject.index_at[place] for place in sampler.order.plan(0).sample_of.tolist()]
    tickets, others, count = list(sampler), 0, 0
    before = len(data_set.stats()["replaced"])
    for first in range(0, len(tickets), BATCH):
        if first == len(tickets) // 2 // BATCH * BATCH:
            strike()
        try:
            drawn = data_set.__getitems__(tickets[first : first + BATCH])
        except BrandError:
            trial.refused += 1
            if not skips:
                continue  # a training would end; what comes later must be right all the same
            break
        count += len(drawn)
        for index, sample in zip(planned[first : first + BATCH], drawn, strict=True):
            if _same(_projected(subject.samples[index], data_set.fields), sample):
                trial.read += 1
            elif skips and _is_any(subject, data_set.fields, sample):
                others += 1
            else:
                trial.wrong.append(f"draw of sample {index}, fields {data_set.fields}: {sample!r:.200}")
    replaced = len(data_set.stats()["replaced"]) - before
    trial.replaced += replaced
    if others > replaced:
        trial.wrong.append(f"{others} samples were others than planned, and {replaced} are listed")


def _is_any(subject: Subject, fields: tuple[str, ...] | None, sample: Any) -> bool:
    """Whether `sample` is one of the data set's samples, under its own index if it has one."""
    if fields is None or "index" in fields:
        index = sample["index"] if fields is None else sample[fields.index("index")]
        there = subject.samples.get(index)
        return there is not None and _same(_projected(there, fields), sample)
    return any(_same(_projected(there, fields), sample) for there in subject.samples.values())


def _any_fields(subject: Subject, rng: random.Random) -> tuple[str, ...] | None:
    """A choice of fields: all, only fields that are not stored, or some in any order."""
    if rng.random() < 0.3:
        return None
    if rng.random() < 0.3:
        return rng.choice([("index",), ("index", "key"), ("key", "index"), ("key",)])
    names = list(dict.fromkeys([*_STATIC, *subject.names]))
    return tuple(rng.sample(names, rng.randint(1, len(names))))


def _projected(sample: Sample, fields: tuple[str, ...] | None) -> Any:
    return sample if fields is None else tuple(sample[name] for name in fields)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and one.keys() == other.keys() and all(_same(v, other[k]) for k, v in one.items())
        )
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def _colour(number: int) -> str:
    return ("red", "green", "blue")[number % 3]


def _picture(number: int) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 256, (6, 5 + number % 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _clip(number: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(8000)
        clip.writeframes(np.random.default_rng(number).bytes(2 * (50 + number)))
    return file.getvalue()


def open_subjects(sets: Path) -> list[Subject]:
    """Copies of the sets, for one process."""
    work = Path(tempfile.mkdtemp(prefix="brand-trials-", dir=sets.parent))
    return [Subject(Path(shutil.copytree(sets / name, work / name))) for name in SETS]
