"""Redaction: no byte of the samples is left in the collection, and the report says what was done."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.collect import NamedSamples, append_data_set, compact, delete, overlay, redact
from brand.collect.home import writing
from brand.errors import UsageError
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
