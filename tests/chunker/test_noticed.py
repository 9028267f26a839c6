"""What a conversion noticed: counted once in every way to convert, and found in the report, `info` and the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import brand
from brand.chunker import Options, convert_images
from brand.chunker.distributed import Task, plan_images, run_task, seal
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.jsonfiles import JsonLines
from brand.chunker.sources.shards import Bad, Block, exchange
from brand.collect import compact
from brand.collect.append import append_images
from brand.collect.changes import NamedSamples, delete
from brand.formats import heads
from brand.formats.manifest import pack_manifest, read_manifest
from brand.formats.noticed import Noticed
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.summary import summarise
from brand.storage.maintenance.reindex import reindex
from tests import support
from tests.formats.test_heads import CASES
from tests.tools.imagefiles import SELDOM

KINDS = {name: file for name, file in CASES.items() if name not in ("audio", "nothing")}
KINDS |= {name: (file.data, file.traits) for name, file in SELDOM.items() if name != "PGM as text"}
EXPECTED = {trait: sum(trait in traits for _, traits in KINDS.values()) for trait in heads.TRAITS}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind, in two classes, with names as `ImageFolder` reads them."""
    folder = tmp_path_factory.mktemp("kinds")
    for number, (name, (data, _)) in enumerate(KINDS.items()):
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        (folder / "ab"[number % 2] / f"{name}.png").write_bytes(data)
    return folder


def counts(facts: tuple[Noticed, ...]) -> dict[str, int]:
    return {fact.what: fact.count for fact in facts}


def samples_of(source: Path) -> list[dict[str, object]]:
    return [{"image": path.read_bytes(), "key": path.name} for path in sorted(source.rglob("*.png"))]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_folder_is_counted(source: Path, tmp_path: Path, jobs: int) -> None:
    """In the report, in the manifest and in `info`; the number of processes and the size of chunks do not matter."""
    report = convert_images(source, tmp_path / "set", Options(chunk_size=4, jobs=jobs))
    one = convert_images(source, tmp_path / "one", Options(jobs=1))
    assert counts(report.noticed) == EXPECTED
    assert report.noticed == one.noticed == read_manifest(tmp_path / "set").noticed
    assert summarise(StoredDataSet(tmp_path / "set")).noticed == report.noticed
    turned = report.noticed[0]
    assert (turned.what, turned.field, turned.example) == (heads.TURNED, "image", "a/AVIF with XMP.png")
    assert turned.text == f"{turned.count} images are turned by EXIF: upright=True turns them"


def test_samples_of_python_are_counted(source: Path, tmp_path: Path) -> None:
    """As those of a folder."""
    report = brand.pack(samples_of(source), tmp_path / "set", {"image": "image", "key": "str"})
    assert counts(report.noticed) == EXPECTED


def test_a_plain_data_set_has_no_facts(tmp_path: Path) -> None:
    """Its manifest is as before."""
    brand.pack([{"image": CASES["plain jpeg"][0]}], tmp_path / "set", {"image": "image"})
    assert "noticed" not in json.loads((tmp_path / "set" / "brand.json").read_bytes())
    assert json.loads((tmp_path / "set" / "brand.json").read_bytes())["version"] == [1, 0]


def test_the_command_prints_and_lists_them(source: Path, tmp_path: Path) -> None:
    """`convert`, `info`, and both with --json."""
    outcome = support.brand("convert", "images", source, tmp_path / "set", "--chunk-size", 8)
    said = f"{EXPECTED[heads.BITS_16]} images have 16 bits: mode='unchanged' keeps them"
    assert said in outcome.out
    assert said in support.brand("info", tmp_path / "set").out
    listed = json.loads(support.brand("convert", "images", source, tmp_path / "two", "--json").out)["noticed"]
    assert listed == json.loads(support.brand("info", tmp_path / "set", "--json").out)["noticed"]
    assert {each["what"]: each["count"] for each in listed} == EXPECTED
    assert {"what", "field", "count", "example", "text"} == set(listed[0])
    assert listed[1]["text"] == said


def test_a_conversion_that_was_stopped_counts_once(source: Path, tmp_path: Path) -> None:
    """Chunks that are found are counted, too."""
    whole = convert_images(source, tmp_path / "whole", Options(chunk_size=4, jobs=1))
    seen = 0

    def stop(progress: object) -> None:
        nonlocal seen
        seen += getattr(progress, "stage", "") == "pack"
        if seen == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_images(source, tmp_path / "set", Options(chunk_size=4, jobs=1), on_progress=stop)
    report = convert_images(source, tmp_path / "set", Options(chunk_size=4, jobs=1))
    assert report.chunks_found > 0
    assert report.noticed == whole.noticed
    assert (tmp_path / "set" / "brand.json").read_bytes() == (tmp_path / "whole" / "brand.json").read_bytes()


def test_tasks_are_counted_together(source: Path, tmp_path: Path) -> None:
    """By `seal`, from what each task has kept, and from chunks whose kept file is lost."""
    whole = convert_images(source, tmp_path / "whole", Options(chunk_size=4, jobs=1))
    job = plan_images(source, tmp_path / "set", Options(chunk_size=4))
    for number in range(3):
        run_task(job, Task(number, 3), jobs=1)
    (tmp_path / "set" / ".brand-work" / "kept" / "1").unlink()
    report = seal(tmp_path / "set")
    assert report.noticed == whole.noticed
    assert (tmp_path / "set" / "brand.json").read_bytes() == (tmp_path / "whole" / "brand.json").read_bytes()
    assert seal(tmp_path / "set").noticed == whole.noticed


def test_a_collection_adds_its_segments(source: Path, tmp_path: Path) -> None:
    """And `compact` counts the samples that remain."""
    for name in ("one", "two"):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a" / f"{name}.jpg").write_bytes(CASES["jpeg turned"][0])
        (tmp_path / name / "a" / f"{name}.plain.jpg").write_bytes(CASES["plain jpeg"][0] + name.encode())
        report = append_images(tmp_path / name, tmp_path / "all.brand")
        assert counts(report.noticed) == {heads.TURNED: 1}
    summary = summarise(StoredDataSet(tmp_path / "all.brand"))
    assert [(fact.count, fact.example) for fact in summary.noticed] == [(2, "a/one.jpg")]
    delete(tmp_path / "all.brand", NamedSamples(keys=["a/one.jpg"]))
    compact(tmp_path / "all.brand")
    summary = summarise(StoredDataSet(tmp_path / "all.brand"))
    assert [(fact.count, fact.example) for fact in summary.noticed] == [(1, "a/two.jpg")]


class TellingLines(JsonLines):
    """JSON lines with a fact about each shard, and one that is known before."""

    def __init__(self, src: Path) -> None:
        super().__init__(src, FieldMapping())
        self.noticed = (Noticed("splits_ignored", 2, "test", "{count} split[s] [is|are] not read"),)

    def read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        """Yield the lines, and two facts."""
        yield Noticed("nulls", 3, f"shard {number}", "{count} value[s]")
        yield from super().read(number)
        yield Noticed("nulls", 1, "the end", "{count} value[s]")


def test_a_source_adds_facts(tmp_path: Path) -> None:
    """Those of all shards are added, and a part that is found keeps its own."""
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    source = TellingLines(tmp_path / "a.jsonl")
    (tmp_path / "work").mkdir()
    for _ in range(2):
        spooled, _, _ = exchange(source, Options(jobs=1), tmp_path / "work", lambda _: None)
        assert [(fact.what, fact.count, fact.example) for fact in spooled.noticed] == [
            ("splits_ignored", 2, "test"),
            ("nulls", 4, "shard 0"),
        ]


def test_reindex_keeps_what_the_chunks_do_not_tell(source: Path, tmp_path: Path) -> None:
    """From the old manifest; without one, only the facts of the samples are there."""
    convert_images(source, tmp_path / "set", Options(jobs=1))
    manifest = read_manifest(tmp_path / "set")
    told = Noticed("rows_skipped", 7, "row 3", "{count} row[s] skipped")
    (tmp_path / "set" / "brand.json").write_bytes(pack_manifest(replace(manifest, noticed=(told, *manifest.noticed))))
    assert reindex(tmp_path / "set").noticed == (told, *manifest.noticed)
    (tmp_path / "set" / "brand.json").unlink()
    assert reindex(tmp_path / "set").noticed == manifest.noticed


def test_reindex_counts_durations_once(tmp_path: Path) -> None:
    """They follow from the samples, as the traits of images do."""
    samples = ({"audio": b"RIFF", "duration": float("nan")} for _ in range(3))
    report = brand.pack(samples, tmp_path / "set", {"audio": "audio", "duration": "float"})
    assert [fact.count for fact in report.noticed] == [3]
    assert reindex(tmp_path / "set").noticed == report.noticed
