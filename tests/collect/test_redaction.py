"""Redaction: no byte of the samples is left in the collection, and the report says what was done."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

import brand
from brand.chunker import Options
from brand.collect import (
    NamedSamples,
    append_data_set,
    append_images,
    append_samples,
    compact,
    delete,
    overlay,
    redact,
    undelete,
)
from brand.collect.home import writing
from brand.errors import FormatError, StorageError, UsageError
from brand.formats.chunk import read_front
from brand.formats.constants import EXTRAS_NAME
from brand.formats.contents import read_records
from brand.formats.publish import file_digest
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.verify import verify
from tests.collect.support import grow, killed, numbers, tidy
from tests.support import files_below

SECRET = b"of-ada"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Samples of two people in three parts; some of Ada's are deleted, some of these compacted; a column."""
    folder = tmp_path / "all"
    for mark, first, count in (("of-bob", 0, 20), ("of-ada", 20, 10), ("of-bob", 30, 5), ("of-ada", 35, 4)):
        grow(folder, first, count, mark=mark)
    overlay(folder, "score", np.arange(39) + 0.5)
    delete(folder, NamedSamples(indices=[21]))
    compact(folder)
    delete(folder, NamedSamples(indices=[22]))
    return folder


def holders(folder: Path, secret: bytes = SECRET) -> list[str]:
    """Files with these bytes."""
    return [name for name, data in files_below(folder).items() if secret in data]


def test_nothing_is_left(made: Path, tmp_path: Path) -> None:
    """Of all a person's samples, deleted ones included: in no file, version or column; other samples are as before."""
    others = {index: StoredDataSet(made).sample(index) for index in (0, 19, 30, 34)}
    assert holders(made)
    told = redact(made, NamedSamples(keys=["of-ada/"], indices=[21]), tmp_path / "report.json")
    assert holders(made) == []
    scores = [np.load(path) for path in (made / "lists").iterdir() if np.load(path).dtype == np.float64]
    assert len(scores) == 1
    assert np.isnan(scores[0][[20, 21, 22, 29, 35, 38]]).all()
    data = StoredDataSet(made)
    assert {index: data.sample(index) for index in others} == others
    assert data.present().tolist() == [*range(20), *range(30, 35)]
    assert [error for step in verify(made) for error in step.errors] == []
    tidy(made)
    assert json.loads((tmp_path / "report.json").read_text()) == told


def test_the_report_says_what_was_done(made: Path, tmp_path: Path) -> None:
    """Each sample with its chunk and checksums, each file before and after, the versions, and what remains."""
    before = {name: file_digest(made / name) for name in files_below(made) if (made / name).is_file()}
    told = redact(made, NamedSamples(keys=["of-ada/36"], indices=[25]), tmp_path / "report.json")
    assert {(each["index"], each["key"]) for each in told["samples"]} == {(25, None), (36, "of-ada/36")}
    for each in told["files_destroyed"]:
        assert (each["bytes"], each["xxh3_128"]) == before[each["file"]]
        assert not (made / each["file"]).exists()
    for each in told["files_written"]:
        assert (each["bytes"], each["xxh3_128"]) == file_digest(made / each["file"])
    assert {each["chunk"] for each in told["samples"]} <= {each["file"] for each in told["files_destroyed"]}
    assert told["versions_removed"] == [2, 3, 4, 5, 6, 7, 8]
    assert numbers(made) == [1, 9]
    assert told["version"] == 9
    assert told["finished"] is True
    assert len(told["remains_with_you"]) == 5


def test_the_same_bytes_elsewhere_are_reported(tmp_path: Path) -> None:
    """A record that was appended twice, in two parts, is found by the report."""
    same = {"number": 1, "share": 0.5, "data": b"x", "key": "k"}
    for name, other in (("one", 5), ("two", 6)):
        samples = [same, {**same, "number": other, "key": name}]
        brand.pack(samples, tmp_path / name, {"number": "int", "share": "float", "data": "bytes", "key": "str"}, jobs=1)
        append_data_set(tmp_path / name, tmp_path / "all")
    told = redact(tmp_path / "all", NamedSamples(indices=[0]), tmp_path / "report.json")
    assert told["same_bytes_elsewhere"] == [2]
    assert "other names (hard links), so the bytes are still on the disk" in told["remains_with_you"][0]
    assert all(each["other_names"] == 1 for each in told["files_destroyed"])
    assert StoredDataSet(tmp_path / "one").sample(0) == same


def test_what_is_wrong_changes_nothing(made: Path, tmp_path: Path) -> None:
    """A key that is not there, all samples, a report that exists, or that would lie in the collection."""
    (tmp_path / "there.json").touch()
    report = tmp_path / "report.json"
    for wanted, to, told in (
        (NamedSamples(keys=["nobody"]), report, "no sample for 1 key"),
        (NamedSamples(keys=["of-ada/", "of-bob/"]), report, "no sample would be left"),
        (NamedSamples(indices=[0]), tmp_path / "there.json", "a new file"),
        (NamedSamples(indices=[0]), tmp_path / "no" / "r.json", "in an existing folder"),
        (NamedSamples(indices=[0]), made / "r.json", "outside of the collection"),
    ):
        with pytest.raises(UsageError, match=told):
            redact(made, wanted, to)
    assert numbers(made) == list(range(1, 9))
    assert not report.exists()
    tidy(made)


def killed_after_publishing(folder: Path, report: Path) -> None:
    """Redact, and be killed once the version is published, before any file is destroyed."""
    before, step = numbers(folder), 10
    while numbers(folder) == before:
        step += 1
        assert killed(partial(redact, folder, NamedSamples(keys=["of-ada/"]), report), folder, step)
    assert (folder / "staging" / "redact.json").exists()


@pytest.mark.parametrize("where", ["gone", "a file", "read-only"])
def test_a_report_whose_folder_is_gone_stops_no_change(
    made: Path, tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next change destroys the samples, and writes the report next to the collection."""
    reports = tmp_path / "reports"
    reports.mkdir()
    killed_after_publishing(made, reports / "report.json")
    with ExitStack() as stack:
        if where == "read-only":
            subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", reports], check=True)
            stack.callback(lambda: subprocess.run(["umount", reports], check=True))
        else:
            reports.rmdir()
            if where == "a file":
                reports.write_bytes(b"")
        grow(made, 100, 3)
    told = json.loads((tmp_path / f"all.redaction-{numbers(made)[-2]}.json").read_text())
    assert told["finished"] is True
    assert f"cannot be written to {reports}/report.json, so it is in {told['written_to']}" in caplog.text
    assert holders(made) == []
    tidy(made)
    grow(made, 200, 3)
    tidy(made)


def test_a_report_without_any_place_says_how(made: Path, tmp_path: Path) -> None:
    """Its folder is gone, and so is the right to write next to the collection: the message helps, literally."""
    reports = tmp_path / "reports"
    reports.mkdir()
    killed_after_publishing(made, reports / "report.json")
    reports.rmdir()
    beside = tmp_path / f".all.redaction-{numbers(made)[-1]}.json.tmp"
    beside.mkdir()  # as if the folder could not be written
    with pytest.raises(StorageError, match=f"Make the folder {reports}, and run the command again"):
        grow(made, 100, 3)
    assert holders(made) == ["staging/redact.json"], "the keys of the samples, until the report can be written"
    reports.mkdir()
    grow(made, 100, 3)
    assert json.loads((reports / "report.json").read_text())["finished"] is True
    assert holders(made) == []
    tidy(made)


@pytest.mark.slow
def test_a_killed_redaction_is_undone_or_finished(made: Path, tmp_path: Path) -> None:
    """Killed before any change of a file: afterwards nothing has happened, or the next writer finishes all of it."""
    outcomes, step, wanted = set(), 0, NamedSamples(keys=["of-ada/"], indices=[21])
    while True:
        step += 1
        copy, report = Path(shutil.copytree(made, tmp_path / f"copy{step}" / "all")), tmp_path / f"{step}.json"
        if not killed(partial(redact, copy, wanted, report), copy, step):
            break
        published = numbers(copy)[-1] == 9
        with writing(copy):
            pass
        tidy(copy)
        assert report.exists() == published
        assert (holders(copy) == []) == published
        assert numbers(copy) == ([1, 9] if published else list(range(1, 9))) or published
        if published:
            assert json.loads(report.read_text())["finished"] is True
        outcomes.add(published)
    assert outcomes == {False, True}
    assert step > 20


def telephone(number: int) -> str:
    return f"+49 {Random(number).randrange(10**12):012d}"


def sayings(first: int, count: int) -> list[dict[str, Any]]:
    """Samples that a dictionary compresses well, each with text that is in no other one."""
    return [
        {
            "key": f"person-{n}/a",
            "text": f"Please ring me at {telephone(n)}, if you can.",
            "label": n % 3,
        }
        for n in range(first, first + count)
    ]


@pytest.fixture
def compressed(tmp_path: Path) -> Path:
    """Two segments with the dictionary of the first one, which holds telephone numbers."""
    folder, schema = tmp_path / "talks", {"key": "str", "text": "str", "label": "int"}
    append_samples(sayings(0, 2000), folder, schema, options=Options(chunk_size=300, jobs=1))
    append_samples(sayings(2000, 500), folder, schema, options=Options(jobs=1))
    return folder


def everything_in(folder: Path) -> bytes:
    """All bytes below a folder: as they are, and the records and dictionaries of all chunks, uncompressed."""
    found = [data for _, data in sorted(files_below(folder).items())]
    for path in sorted(folder.rglob("*.brand")):
        if path.is_file():
            with path.open("rb") as file:
                front = read_front(file, path)
                records = [record for _, record in read_records(file, front, path)]
                assert not any(isinstance(record, FormatError) for record in records)
                found += [front.dictionary, *map(bytes, cast(list[bytes], records))]
    return b"\0".join(found)


def in_dictionary(folder: Path) -> list[int]:
    dictionary = StoredDataSet(folder).dictionary
    return [n for n in range(2500) if telephone(n).encode() in dictionary]


@pytest.mark.parametrize("before", ["present", "deleted", "compacted"])
def test_no_text_is_left_in_a_dictionary(compressed: Path, tmp_path: Path, before: str) -> None:
    """Whether the samples were present, deleted or compacted before, their texts are in no dictionary and no record."""
    wanted = in_dictionary(compressed)[:5]
    assert len(wanted) == 5, "the dictionary holds telephone numbers"
    if before != "present":
        delete(compressed, NamedSamples(indices=wanted))
    if before == "compacted":
        compact(compressed, forget=True)
    others = {n: StoredDataSet(compressed).sample(n) for n in (0, 1, 777, 1999, 2000, 2499) if n not in wanted}
    told = redact(compressed, NamedSamples(indices=wanted), tmp_path / "report.json")
    left = everything_in(compressed)
    assert [n for n in wanted if telephone(n).encode() in left] == []
    assert telephone(int(min(others))).encode() in left
    data = StoredDataSet(compressed)
    assert {n: data.sample(n) for n in others} == others
    assert len(data.present()) == 2500 - len(wanted)
    assert len(data.dictionary) > 0
    assert "trained again" in told["checked"]["dictionary"]
    assert set(told["checked"]) == {"samples", "dictionary", "columns", "noticed", "companions", "staging"}
    assert [error for step in verify(compressed) for error in step.errors] == []
    tidy(compressed)


def test_other_segments_keep_their_deleted_samples(compressed: Path, tmp_path: Path) -> None:
    """A segment that is rewritten for its dictionary alone loses nothing: its deleted samples can be restored."""
    delete(compressed, NamedSamples(indices=[2100]))
    before = StoredDataSet(f"{compressed}@2").sample(2100)
    redact(compressed, NamedSamples(indices=[5]), tmp_path / "report.json")
    undelete(compressed, [2100])
    assert StoredDataSet(compressed).sample(2100) == before
    with pytest.raises(UsageError, match="no longer in this version"):
        undelete(compressed, [5])
    append_samples(
        sayings(2500, 40), compressed, {"key": "str", "text": "str", "label": "int"}, options=Options(jobs=1)
    )
    assert StoredDataSet(compressed).sample(2539)["text"] == sayings(2539, 1)[0]["text"]


def test_a_dictionary_goes_if_too_few_samples_remain(compressed: Path, tmp_path: Path) -> None:
    """Three samples remain, which train no dictionary."""
    told = redact(compressed, NamedSamples(indices=list(range(3, 2500))), tmp_path / "report.json")
    assert "too few" in told["checked"]["dictionary"]
    assert StoredDataSet(compressed).dictionary == b""
    assert [each["key"] for each in StoredDataSet(compressed).samples(np.arange(3))] == [
        f"person-{n}/a" for n in range(3)
    ]


def test_segments_without_the_samples_keep_their_other_files(tmp_path: Path) -> None:
    """`extras.zip` of a segment that held a sample is destroyed; that of another segment stays, and is named."""
    folder = tmp_path / "all"
    for name, options in (("ada", Options(chunk_size=100, compression="zstd")), ("bob", Options())):
        source = tmp_path / name / name
        source.mkdir(parents=True)
        for number in range(200):
            Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(source / f"{number}.png")
            (source / f"{number}.txt").write_text(f"{name} says {telephone(number)} as always, and more than that.")
        append_images(tmp_path / name, folder, replace(options, jobs=1))
    assert StoredDataSet(folder).dictionary
    assert b"ada says" in everything_in(folder)
    told = redact(folder, NamedSamples(keys=["ada/7.png"]), tmp_path / "report.json")
    left = everything_in(folder)
    assert telephone(7).encode() not in left.replace(b"bob says " + telephone(7).encode(), b"")
    archives = [path.read_bytes() for path in folder.rglob("extras.zip")]
    assert len(archives) == 1
    assert f"/{EXTRAS_NAME}" in str(told["remains_with_you"])


def test_names_of_empty_classes_are_reported(tmp_path: Path) -> None:
    """The name of a class, often that of a person, stays in the headers: the report says so."""
    folder = tmp_path / "all"
    for name in ("ada", "bob"):
        (tmp_path / "source" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / "source" / name / f"{number}.png")
    append_images(tmp_path / "source", folder, Options(jobs=1))
    delete(folder, NamedSamples(keys=["ada/0.png"]))
    told = redact(folder, NamedSamples(keys=["ada/"]), tmp_path / "report.json")
    assert "names of classes that have no sample any more, in every chunk: ada" in told["remains_with_you"]


def test_stopped_conversions_are_reported(compressed: Path, tmp_path: Path) -> None:
    """A conversion into the collection that was stopped may hold the samples, too: the report names its folder."""
    (compressed / "staging" / "append-images-12345678").mkdir()
    told = redact(compressed, NamedSamples(indices=[5]), tmp_path / "report.json")
    assert [each for each in told["remains_with_you"] if "staging/append-images-12345678" in each]


def test_images_of_many_blocks_are_counted(tmp_path: Path) -> None:
    """A chunk of images that is read in several blocks is rewritten, with its facts."""
    rng = np.random.default_rng(1)
    images = []
    for number in range(6):
        memory = io.BytesIO()
        mode = "RGBA" if number % 2 else "RGB"
        pixels = rng.integers(0, 256, (1024, 1024, len(mode)), dtype=np.uint8)
        Image.fromarray(pixels, mode).save(memory, "PNG", compress_level=1)
        images.append({"key": f"{number}.png", "image": memory.getvalue()})
    folder = tmp_path / "all"
    append_samples(images, folder, {"key": "str", "image": "image"}, options=Options(chunk_size=6, jobs=1))
    redact(folder, NamedSamples(keys=["1.png"]), tmp_path / "report.json")
    facts = {fact.what: (fact.count, fact.example) for fact in StoredDataSet(folder).manifest.noticed}
    assert facts["images_with_alpha"] == (2, "3.png")
    assert StoredDataSet(folder).sample(5)["image"] == images[5]["image"]
