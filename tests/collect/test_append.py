"""Samples get into a collection: labels, dictionaries and chunk sizes stay, what is there is not added twice."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.chunker import Options, convert_images
from brand.collect import (
    NamedSamples,
    append_data_set,
    append_from,
    append_images,
    append_samples,
    compact,
    delete,
    versions,
)
from brand.collect import home as home_module
from brand.collect.home import Writer, kept, unfinished, writing
from brand.errors import BrandError, SchemaError, SourceError, StorageError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.verify import verify
from tests.collect.support import SCHEMA, grow, killed, numbers, samples, tidy
from tests.support import brand_process

ONE = Options(jobs=1)


@pytest.fixture
def photos(fashion: Path, tmp_path: Path) -> Path:
    """Two months of pictures: in April there are two classes of March, and two new ones, one sorted before these."""
    classes = sorted(path for path in (fashion / "test").iterdir() if path.is_dir())
    for month, chosen, few in (("march", classes[1:4], slice(0, 6)), ("april", classes[2:6], slice(6, 9))):
        for folder in chosen:
            target = tmp_path / month / folder.name
            target.mkdir(parents=True)
            for file in sorted(folder.iterdir())[few]:
                shutil.copy(file, target)
    early = tmp_path / "april" / "0 early"
    early.mkdir()
    shutil.copy(sorted(classes[0].iterdir())[0], early)
    return tmp_path


def test_classes_keep_their_labels(photos: Path) -> None:
    """New ones get the next numbers, whatever their names."""
    folder = photos / "all"
    append_images(photos / "march", folder, ONE)
    report = append_images(photos / "april", folder, ONE)
    data = StoredDataSet(folder)
    old = StoredDataSet(f"{folder}@1").classes
    assert data.classes is not None
    assert old is not None
    assert data.classes[:3] == old
    assert data.classes[3] == "0 early"
    assert len(data.classes) == 6
    for index in range(len(data)):
        sample = data.sample(index)
        assert data.classes[sample["label"]] == sample["key"].split("/")[0]
    assert "Version 2: the new samples are 18 to 30 of 31" in report.notes
    assert report.target == str(folder)


def test_a_dictionary_is_used_again(tmp_path: Path) -> None:
    """Small texts are compressed with that of the first part, so one reader unpacks all."""
    texts = [f"sample {i} says: the quick brown fox jumps over the lazy dog, again and again" for i in range(400)]
    schema = {"text": "str"}
    append_samples([{"text": t} for t in texts], tmp_path / "all", schema, options=ONE)
    append_samples([{"text": t + "!"} for t in texts[:50]], tmp_path / "all", options=ONE)
    data = StoredDataSet(tmp_path / "all")
    assert data.manifest.dictionary_size > 0
    assert [data.sample(i)["text"] for i in range(450)] == texts + [t + "!" for t in texts[:50]]
    row = data.rows_at(data.places(np.array([420])))[0]
    assert row["size"] < row["raw_size"]


def test_what_is_there_is_not_added_twice(photos: Path) -> None:
    """The same command again, after it had ended: nothing is done, and nothing is left."""
    folder = photos / "all"
    append_images(photos / "march", folder, ONE)
    with pytest.raises(UsageError, match="in the collection already, as 0 to 17"):
        append_images(photos / "march", folder, ONE)
    append_images(photos / "april", folder, ONE)  # more classes
    with pytest.raises(UsageError, match="in the collection already, as 0 to 17"):
        append_images(photos / "march", folder, ONE)
    delete(folder, NamedSamples(indices=[3]))
    compact(folder)
    with pytest.raises(UsageError, match="in the collection already, as 0 to 17"):
        append_images(photos / "march", folder, ONE)
    assert numbers(folder) == [1, 2, 3, 4]
    tidy(folder)


def test_one_source_is_appended_by_one_process_at_a_time(photos: Path) -> None:
    """The other one is told, and disturbs nothing."""
    append_images(photos / "march", photos / "all", ONE)
    name = hashlib.blake2s(str(photos / "april").encode()).hexdigest()[:8]
    with (
        kept(photos / "all", f"images-{name}"),
        pytest.raises(UsageError, match="another process is appending this source"),
    ):
        append_images(photos / "april", photos / "all", ONE)
    append_images(photos / "april", photos / "all", ONE)
    tidy(photos / "all")


def test_a_finished_data_set_is_linked(photos: Path) -> None:
    """Its files get a second name; with `copy`, they are copied. It stays as it is."""
    convert_images(photos / "march", photos / "march.brand", ONE)
    append_data_set(photos / "march.brand", photos / "linked")
    append_data_set(photos / "march.brand", photos / "copied", copy=True)
    chunk = Path(StoredDataSet(photos / "march.brand").location.chunk_file(0))
    assert chunk.samefile(StoredDataSet(photos / "linked").location.chunk_file(0))
    assert not chunk.samefile(StoredDataSet(photos / "copied").location.chunk_file(0))
    for name in ("linked", "copied"):
        assert StoredDataSet(photos / name).sample(3) == StoredDataSet(photos / "march.brand").sample(3)
        tidy(photos / name)


def test_a_data_set_that_does_not_fit_is_refused(photos: Path) -> None:
    """Other fields, another chunk size, another dictionary, other labels: before anything is linked."""
    grow(photos / "all", 0, 20)
    plain = {"compression": "none", "jobs": 1}
    brand.pack(samples(50, 9), photos / "sized.brand", SCHEMA, chunk_size=4, **plain)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match=r"4 samples per chunk, and the collection 8.*--chunk-size 8"):
        append_data_set(photos / "sized.brand", photos / "all")
    brand.pack([{"x": 1}], photos / "other.brand", {"x": "int"}, chunk_size=8, **plain)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="they have no field 'number'"):
        append_data_set(photos / "other.brand", photos / "all")
    convert_images(photos / "march", photos / "march.brand", ONE)
    convert_images(photos / "april", photos / "april.brand", ONE)
    append_data_set(photos / "march.brand", photos / "pictures")
    with pytest.raises(SchemaError, match="do not begin with the 3 classes"):
        append_data_set(photos / "april.brand", photos / "pictures")
    for name, words in (("one", "the quick brown fox jumps over the lazy dog"), ("two", "pack my box with five jugs")):
        texts = [{"text": f"sample {i} says: {words}, again and again"} for i in range(400)]
        brand.pack(texts, photos / name, {"text": "str"}, chunk_size=64, jobs=1)
        assert StoredDataSet(photos / name).manifest.dictionary_size > 0
    append_data_set(photos / "one", photos / "texts")
    with pytest.raises(SchemaError, match="another dictionary"):
        append_data_set(photos / "two", photos / "texts")
    for name in ("all", "pictures", "texts"):
        assert numbers(photos / name) == [1]
        tidy(photos / name)


def test_options_of_the_collection_are_not_given_again(tmp_path: Path) -> None:
    """Chunk size and compression would be another's."""
    grow(tmp_path / "all", 0, 20)
    for options in (Options(chunk_size=4), Options(chunk_bytes=100), Options(compression="zstd")):
        with pytest.raises(UsageError, match="are those of the collection"):
            append_samples(samples(30, 3), tmp_path / "all", SCHEMA, options=options)


def test_fields_are_compared_before_all_is_read(tmp_path: Path) -> None:
    """Of data of another tool, too."""
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(50)))
    append_from("jsonl", lines, tmp_path / "all", ONE)
    lines.write_text("".join(json.dumps({"text": f"line {i}", "more": i}) + "\n" for i in range(50)))
    with pytest.raises(SchemaError, match="a field 'more', which the collection does not have"):
        append_from("jsonl", lines, tmp_path / "all", ONE)
    lines.write_text(json.dumps({"text": "new"}) + "\n")
    append_from("jsonl", lines, tmp_path / "all", ONE)
    assert StoredDataSet(tmp_path / "all").sample(50) == {"text": "new"}


def test_where_no_collection_can_be_is_refused(tmp_path: Path, small_set: Path) -> None:
    """A data set, a folder of other files, a version, a store, a collection as a part; the message says what to do."""
    grow(tmp_path / "all", 0, 5)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for target, told in (
        (small_set, "brand append dataset"),
        (tmp_path / "full", "neither a collection nor empty"),
        (f"{tmp_path}/all@1", "versions do not change"),
        ("s3://bucket/all", "not in a store"),
    ):
        with pytest.raises(UsageError, match=told):
            append_samples(samples(9, 2), target, SCHEMA, options=ONE)
    with pytest.raises(UsageError, match="is a collection: only a whole data set"):
        append_data_set(tmp_path / "all", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.fixture
def small_set(tmp_path: Path) -> Path:
    """An ordinary data set."""
    brand.pack(samples(0, 5), tmp_path / "small.brand", SCHEMA, jobs=1)
    return tmp_path / "small.brand"


def test_a_source_that_cannot_be_used_changes_nothing(photos: Path) -> None:
    """The conversion can be continued once the file is mended; the collection reads as before."""
    append_images(photos / "march", photos / "all", ONE)
    bad = photos / "april" / "0 early" / "0.png"
    bad.write_text("no picture")
    with pytest.raises(SourceError):
        append_images(photos / "april", photos / "all", ONE)
    assert numbers(photos / "all") == [1]
    bad.unlink()
    append_images(photos / "april", photos / "all", ONE)
    tidy(photos / "all")


def test_a_dry_run_writes_nothing(photos: Path) -> None:
    """Neither the collection, nor its folder."""
    report = append_images(photos / "march", photos / "all", Options(jobs=1, dry_run=True))
    assert (report.samples, report.dry_run) == (18, True)
    assert not (photos / "all").exists()


@pytest.mark.slow
def test_a_killed_append_goes_on_with_the_same_command(photos: Path) -> None:
    """Killed at many moments, the same command ends it; it is listed as unfinished till then, and is there once."""
    folder = photos / "all"
    append_images(photos / "march", folder, ONE)
    seen, step = 0, 0
    while True:
        step += 1
        copy = Path(shutil.copytree(folder, photos / f"copy{step}"))
        if not killed(partial(append_images, photos / "april", copy, ONE), copy, 4 * step):
            break
        seen += bool(unfinished(copy))
        if numbers(copy) == [1]:
            append_images(photos / "april", copy, ONE)
        else:
            with writing(copy):
                pass
        assert numbers(copy) == [1, 2]
        assert len(StoredDataSet(copy)) == 31
        shutil.rmtree(copy / "staging")
        (copy / "staging").mkdir()
        tidy(copy)
    assert step > 5
    assert seen > 0


@pytest.mark.slow
def test_a_real_process_is_killed_while_it_appends(photos: Path) -> None:
    """And another one, by the command, goes on."""
    for attempt in range(3):
        code = (
            "import sys; from pathlib import Path; from brand.chunker import Options; "
            "from brand.collect import append_images; from tests.collect.support import die_before; "
            f"die_before(Path({str(photos / 'all')!r}), {25 + 20 * attempt}); "
            f"append_images({str(photos / 'march')!r}, {str(photos / 'all')!r}, Options(jobs=1))"
        )
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
        assert done.returncode in (-9, 0), done.stderr
    told = brand_process("append", "images", photos / "march", photos / "all", "-j", 1)
    assert told.code == 0 or "already" in told.err
    assert len(StoredDataSet(photos / "all")) == 18
    assert len(numbers(photos / "all")) == 1


@pytest.mark.slow
def test_two_append_at_once(tmp_path: Path) -> None:
    """Both are in: the second one counts on from the first."""
    folder = tmp_path / "all"
    grow(folder, 0, 10)
    begin = threading.Barrier(4)

    def work(number: int) -> None:
        begin.wait()
        for each in range(3):
            grow(folder, 1000 * number + 10 * each, 10)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = StoredDataSet(folder)
    assert len(data) == 130
    keys = {data.sample(index)["key"] for index in range(130)}
    assert len(keys) == 130
    assert numbers(folder) == list(range(1, 14))
    tidy(folder)


def test_a_version_is_never_replaced(tmp_path: Path) -> None:
    """Where the lock does not hold, as on some network file systems, the second writer is told."""
    folder = tmp_path / "all"
    grow(folder, 0, 10)
    with writing(folder) as writer:
        other = Writer(folder, writer.present)
        writer.publish("one", writer.present.parts, None, {})
        with pytest.raises(StorageError, match="another process has published version 2"):
            other.publish("other", other.present.parts, None, {})
    assert [line.note for line in versions(folder)][1] == "one"
    tidy(folder)


def test_a_writer_waits_for_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever."""
    grow(tmp_path / "all", 0, 10)
    monkeypatch.setattr(home_module, "WAIT_S", 0.1)
    with writing(tmp_path / "all"), pytest.raises(StorageError, match="another process"), writing(tmp_path / "all"):
        pass


def test_parts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes descriptors of every reader."""
    monkeypatch.setattr(home_module, "MOST_PARTS", 2)
    grow(tmp_path / "all", 0, 3)
    grow(tmp_path / "all", 3, 3)
    with pytest.raises(BrandError, match="would have 3 segments, and 2 are the most: `brand compact` merges them"):
        grow(tmp_path / "all", 6, 3)
    with writing(tmp_path / "all"):
        pass
    tidy(tmp_path / "all")


def test_lists_in_a_collection(tmp_path: Path) -> None:
    """Segments with lists grow, lose samples and are written again: version 1.2 stays version 1.2, and values stay."""
    schema, grown = {"texts": "list[str]", "n": "int"}, tmp_path / "grown"
    rows = [{"texts": [f"{at}.{each}" for each in range(at % 4)], "n": at} for at in range(30)]
    append_samples(rows[:20], grown, schema, options=Options(chunk_size=4, jobs=1))
    append_samples(rows[20:], grown)
    delete(grown, NamedSamples(indices=[3, 21]))
    compact(grown)
    data = StoredDataSet(grown)
    assert [data.sample(at)["texts"] for at in data.present().tolist()] == [
        row["texts"] for row in rows if row["n"] not in (3, 21)
    ]
    assert [error for step in verify(grown) for error in step.errors] == []
    for manifest in grown.glob("parts/*/brand.json"):
        assert json.loads(manifest.read_bytes())["version"] == [1, 2]
        chunks = sorted(manifest.parent.glob("chunks/*"))
        assert {chunk.read_bytes()[8:12] for chunk in chunks} == {b"\1\0\2\0"}
