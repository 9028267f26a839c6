"""`append`, `versions`, `overlay`, `delete`, `compact`, `redact`: what they print, and what they refuse."""

from __future__ import annotations

import json
import shutil
import wave as wave_module
from pathlib import Path

import numpy as np
import pytest

from brand.collect import tiers
from brand.storage.dataset.dataset import StoredDataSet
from tests.collect.support import grow
from tests.support import Disk, brand


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection of two parts, `all` in the working folder."""
    monkeypatch.chdir(tmp_path)
    grow(tmp_path / "all", 0, 12, mark="a")
    grow(tmp_path / "all", 12, 9, mark="b")
    return tmp_path / "all"


def test_pictures_are_appended(fashion: Path, tmp_path: Path) -> None:
    """The report names the collection, its version and the new indices; the same again is refused."""
    few = tmp_path / "few"
    for folder in sorted((fashion / "test").iterdir())[:3]:
        (few / folder.name).mkdir(parents=True)
        for file in sorted(folder.iterdir())[:2]:
            shutil.copy(file, few / folder.name)
    target = tmp_path / "all"
    told = brand("append", "images", few, target, "-j", 1)
    assert told.code == 0
    assert f"6 samples in 3 classes are now 1 chunk of 64 in {target}" in told.out
    assert "Version 1: the new samples are 0 to 5 of 6" in told.out
    again = brand("append", "images", few, target, "-j", 1)
    assert (again.code, again.out) == (2, "")
    assert "in the collection already, as 0 to 5: nothing was done" in again.err
    other = brand("append", "images", few / "..", target, "-j", 1, "--chunk-size", 8)
    assert other.code == 2
    assert "leave out --chunk-size" in other.err


def test_json_lines_are_appended(made: Path, tmp_path: Path) -> None:
    """As by `brand convert`, with its options; what does not fit is refused."""
    (tmp_path / "a.jsonl").write_text('{"text": "one", "more": null}\n')
    told = brand("append", "jsonl", tmp_path / "a.jsonl", tmp_path / "texts", "--columns", "text", "-j", 1, "--json")
    assert (told.code, told.json["samples"]) == (0, 1)
    wrong = brand("append", "jsonl", tmp_path / "a.jsonl", made, "--columns", "text", "-j", 1)
    assert wrong.code == 2
    assert "they have no field 'number'" in wrong.err


def test_a_data_set_is_appended(made: Path, tmp_path: Path) -> None:
    """By hard links, or by copies."""
    grow(tmp_path / "other", 100, 5)
    (part,) = (tmp_path / "other" / "parts").iterdir()
    told = brand("append", "dataset", part, made)
    assert told.out == f"Version 3 of {made} has 26 samples; the new ones are 21 to 25\n"
    again = brand("append", "dataset", part, tmp_path / "new", "--copy", "--json")
    assert again.json == {"path": str(tmp_path / "new"), "version": 1, "first": 0, "end": 5, "samples": 5}


def test_appends_compact(fashion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--compact` of each kind of append, and `brand compact` itself."""
    monkeypatch.setattr(tiers, "FANOUT", 2)
    picture = sorted((fashion / "test").rglob("*.png"))[:2]
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text(f'{{"text": "line {number}"}}\n')
        np.save(tmp_path / f"{number}.npy", np.arange(20, dtype=np.uint16) + number)
        (tmp_path / f"images{number}/a").mkdir(parents=True)
        shutil.copy(picture[number], tmp_path / f"images{number}/a/{number}.png")
        wave = tmp_path / f"audio{number}/a/{number}.wav"
        wave.parent.mkdir(parents=True)
        with wave_module.open(str(wave), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes([number] * 800))
    for kind, source in (("jsonl", "{}.jsonl"), ("tokens", "{}.npy"), ("images", "images{}"), ("audio", "audio{}")):
        for number in range(2):
            more = ("--block", 10) if kind == "tokens" else ()
            told = brand("append", kind, tmp_path / source.format(number), tmp_path / kind, "-j", 1, "--compact", *more)
            assert told.code == 0
            assert ("Version 3 has the same samples in 1 segment" in told.out) == (number == 1)
    for number in range(2):
        grow(tmp_path / f"one{number}", 100 * number, 5)
        (part,) = (tmp_path / f"one{number}/parts").iterdir()
        brand("append", "dataset", part, tmp_path / "all", *(["--compact"] if number else []))
    assert len(StoredDataSet(tmp_path / "all").version.parts) == 1  # type: ignore[union-attr]
    grow(tmp_path / "all", 200, 10)
    told = brand("compact", tmp_path / "all")
    assert told.out.splitlines() == [
        f"2 segments merged into 1: version 5 of {tmp_path / 'all'}",
        "Older versions keep the old segments: `brand compact --forget` removes both",
    ]


def test_versions_are_listed(made: Path) -> None:
    """What each holds, and what was done; an append that was stopped."""
    brand("delete", made, "--index", 3)
    told = brand("versions", made)
    assert [line.split()[0] for line in told.out.splitlines()] == ["1", "2", "3"]
    assert "20 samples, 1 deleted" in told.out.splitlines()[2]
    assert "delete 1 sample" in told.out.splitlines()[2]
    (made / "staging" / "append-images-12345678").mkdir()
    assert "An append was stopped: run it again, or remove" in brand("versions", made).out
    facts = brand("versions", made, "--json").json
    assert [line["present"] for line in facts["versions"]] == [12, 21, 20]
    assert len(facts["unfinished"]) == 1


def test_samples_are_deleted_and_come_back(made: Path, tmp_path: Path) -> None:
    """By keys, a file of keys, and indices; `--undo` takes indices."""
    (tmp_path / "ids.txt").write_text("a/3\n\nb/12\n", encoding="utf-8")
    told = brand("delete", made, "--key-file", tmp_path / "ids.txt", "--key", "a/4", "--index", 20)
    assert told.out == f"4 samples are deleted: version 3 of {made} has 17 samples\n"
    assert brand("cat", made, 3).code == 1
    assert "sample 3 was deleted" in brand("cat", made, 3).err
    assert brand("cat", f"{made}@2", 3).code == 0
    told = brand("delete", made, "--undo", "--index", 3, "--json")
    assert told.json == {"path": str(made), "version": 4, "undo": True, "indices": [3], "present": 18}
    assert brand("delete", made, "--undo", "--index", 4).out.startswith("1 sample is there again: version 5")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["delete"], "no sample is named: give --key, --key-file or --index"),
        (["delete", "--key", "nobody"], "no sample for 1 key of 1: nobody. Nothing was done"),
        (["delete", "--key-file", "missing.txt"], "missing.txt: the keys cannot be read"),
        (["delete", "--undo", "--key", "a/3"], "--undo takes --index"),
        (["overlay", "score"], "write NAME=FILE.npy"),
        (["overlay", "score=missing.npy"], "missing.npy: the column cannot be read"),
        (["overlay", "score="], "no column 'score'"),
        (["compact", "--above", "2"], "--above"),
        (["redact", "--index", "3"], "--report"),
        (["redact", "--report", "r.json"], "no sample is named"),
        (["unpack", "out"], "is a collection"),
        (["reindex"], "is a collection: each of its segments has an index of its own"),
        (["copy", "out"], "a collection"),
        (["convert", "images"], "is a collection, which is converted already"),
    ],
)
def test_wrong_use_is_told(made: Path, words: list[str], told: str) -> None:
    """And nothing is changed."""
    verb, *rest = words
    command = ["convert", "images", made, "new.brand"] if verb == "convert" else [verb, made, *rest]
    done = brand(*command)
    assert done.code in (1, 2)
    assert told in done.err
    assert len(brand("versions", made).out.splitlines()) == 2


@pytest.mark.parametrize("verb", ["versions", "delete", "compact", "redact", "overlay"])
def test_only_a_collection_is_changed(verb: str, made: Path, tmp_path: Path) -> None:
    """A data set is told how to become one; a folder that is neither, and a version."""
    more: dict[str, list[object]] = {
        "delete": ["--index", 3],
        "redact": ["--index", 3, "--report", "r.json"],
        "overlay": ["x=y.npy"],
    }
    np.save("y.npy", np.zeros(3))
    (part, *_) = (made / "parts").iterdir()
    assert "brand append dataset" in brand(verb, part, *more.get(verb, [])).err
    assert "is not a collection: `brand append` makes one" in brand(verb, tmp_path / "none", *more.get(verb, [])).err
    assert "versions do not change" in brand(verb, f"{made}@1", *more.get(verb, [])).err


def test_a_column_is_added_and_removed(made: Path) -> None:
    """`brand info` shows it, and `brand cat` its value."""
    np.save("q.npy", np.arange(21) / 2)
    assert brand("overlay", made, "score=q.npy").out == f"Version 3 of {made} has a column score for 21 samples\n"
    assert "score  2.5" in brand("cat", made, 5).out
    assert "columns score" in brand("info", made).out
    told = brand("overlay", made, "score=", "--json")
    assert told.json == {"path": str(made), "version": 4, "columns": []}


def test_parts_are_compacted(made: Path) -> None:
    """Only where more than a fifth is deleted; with `--forget`, old versions go."""
    brand("delete", made, "--index", 0)
    assert "no segment of" in brand("compact", made).out
    brand("delete", made, *(word for index in range(1, 6) for word in ("--index", index)))
    told = brand("compact", made)
    assert "1 segment rewritten without 6 deleted samples" in told.out
    assert "`brand compact --forget` removes both" in told.out
    forgot = brand("compact", made, "--forget", "--json").json
    assert forgot["done"] == {"version": 5, "segments": 0, "written": 0, "samples": 0}
    assert forgot["freed"] > 0
    assert brand("compact", made, "--json").json == {"path": str(made), "done": None, "freed": 0}


def test_samples_are_redacted(made: Path, tmp_path: Path) -> None:
    """The command says what remains; the report is there, and it is what `--json` prints."""
    told = brand("redact", made, "--key", "b/", "--report", tmp_path / "r.json")
    assert told.code == 0
    assert "9 samples destroyed, with" in told.out
    assert "Brand cannot destroy these:" in told.out
    assert StoredDataSet(made).present().tolist() == list(range(12))
    again = brand("redact", made, "--index", 3, "--report", tmp_path / "s.json", "--json")
    assert again.json == json.loads((tmp_path / "s.json").read_text())
    taken = brand("redact", made, "--index", 4, "--report", tmp_path / "s.json")
    assert taken.code == 2
    assert "a new file" in taken.err


def test_info_and_verify_know_versions(made: Path) -> None:
    """Counts are those of present samples; damage is named."""
    brand("delete", made, "--index", 3)
    facts = brand("info", made, "--json").json
    assert (facts["samples"], facts["collection"]["version"], facts["collection"]["deleted"]) == (20, 3, 1)
    assert sum(facts["size_histogram"].values()) == 20
    assert brand("info", f"{made}@1", "--json").json["samples"] == 12
    assert "version      3, of 2 segments, 1 sample deleted" in brand("info", made).out
    assert f"{made} is whole: 21 samples in 4 chunks" in brand("verify", made).out
    version = StoredDataSet(made).version
    assert version is not None
    assert version.deleted is not None
    (made / version.deleted.name).write_bytes(b"x")
    assert brand("verify", made).code == 1
    assert brand("verify", f"{made}@2").code == 0


@pytest.mark.parametrize("kind", ["jsonl", "dataset"])
def test_a_merge_on_a_full_disk_says_that_the_samples_are_there(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The append is done, the merge is not: a message for both, and exit code 1. With space, `brand compact` merges."""
    monkeypatch.setattr(tiers, "FANOUT", 2)
    disk.mount("size=64m")
    folder, sources = disk.folder / "all", list[Path]()
    for night in range(2):
        rows = ({"key": f"{night}/{row}", "data": "x" * 20_000} for row in range(100))
        sources.append(tmp_path / f"{night}.jsonl")
        sources[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
        if kind == "dataset":
            source, sources[-1] = sources[-1], tmp_path / f"{night}.brand"
            assert brand("convert", "jsonl", source, sources[-1], "-j", 1, "--compression", "none").code == 0
    first = ("--compression", "none", "-j", 1) if kind == "jsonl" else ()
    assert brand("append", kind, sources[0], folder, *first).code == 0
    used = sum(file.stat().st_blocks for file in folder.rglob("*")) // 2
    disk.mount("remount", f"size={3 * used}k")  # twice that for both segments, and half of the merged one
    told = brand("append", kind, sources[1], folder, "--compact", *first[2:])
    assert (told.code, told.out) == (1, "")
    done = "version 2 has the new samples, 100 to 199 of 200: do not append them again"
    why = "were not merged: no space left on the device. Run `brand compact"
    assert done in told.err
    assert why in told.err
    assert "same command" not in told.err
    found = StoredDataSet(folder)
    assert [found.sample(index)["key"] for index in (0, 99, 100, 199)] == ["0/0", "0/99", "1/0", "1/99"]
    assert list((folder / "staging").iterdir()) == []
    disk.mount("remount", "size=64m")
    again = brand("append", kind, sources[1], folder, "--compact", *first[2:])
    assert (again.code, "already, as 100 to 199" in again.err) == (2, True)
    assert brand("compact", folder).code == 0
    assert "compact 2 segments into 1" in brand("versions", folder).out
