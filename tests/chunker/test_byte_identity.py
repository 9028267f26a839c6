"""Same source, same options, same seed: the same bytes, whatever the number of processes, on every run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brand import pack
from brand.chunker import Options, convert_audio, convert_images
from brand.storage.maintenance.reindex import reindex
from brand.storage.maintenance.unpack import unpack
from brand.storage.maintenance.verify import verify
from tests.support import files_below, tree_digest

Convert = Callable[[Path, int, int], None]
SCHEMA = {"n": "int", "text": "str", "x": "float"}


def sample(number: int) -> dict[str, Any]:
    return {"n": number, "text": f"the sample with number {number} " * (number % 9), "x": number / 7}


class Indexable:
    """700 samples by index."""

    def __len__(self) -> int:
        return 700

    def __getitem__(self, index: int) -> dict[str, Any]:
        return sample(index)


def stream() -> Iterator[dict[str, Any]]:
    yield from map(sample, range(700))


def packer(make: Callable[[], Any]) -> Convert:
    def convert(target: Path, jobs: int, seed: int) -> None:
        pack(make(), target, SCHEMA, seed=seed, chunk_size=30, jobs=jobs)

    return convert


@pytest.fixture(params=["photos", "clips with a table", "clips with sidecars", "list", "generator", "indexable"])
def convert(request: pytest.FixtureRequest, photos: Path, clips: Path, tmp_path: Path) -> Convert:
    """A conversion as a function of target, processes and seed."""

    def images(target: Path, jobs: int, seed: int) -> None:
        convert_images(photos, target, Options(seed, chunk_size=5, jobs=jobs))

    def with_table(target: Path, jobs: int, seed: int) -> None:
        convert_audio(clips, target, Options(seed, chunk_size=5, jobs=jobs), transcripts=clips / "transcripts.tsv")

    def with_sidecars(target: Path, jobs: int, seed: int) -> None:
        convert_audio(tmp_path / "speech", target, Options(seed, chunk_size=5, jobs=jobs))

    if request.param == "clips with sidecars":
        shutil.copytree(clips, tmp_path / "speech", ignore=shutil.ignore_patterns("*.tsv"))
        for row in (clips / "transcripts.tsv").read_text(encoding="utf-8").splitlines()[1:]:
            name, text = row.split("\t")
            (tmp_path / "speech" / name).with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
        for file in (tmp_path / "speech").rglob("*.wav"):  # a file without a text is noticed, which no chunk remembers
            file.with_suffix(".txt").touch()
    return {
        "photos": images,
        "clips with a table": with_table,
        "clips with sidecars": with_sidecars,
        "list": packer(lambda: list(stream())),
        "generator": packer(stream),
        "indexable": packer(Indexable),
    }[request.param]


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_processes_or_run(convert: Convert, tmp_path: Path) -> None:
    """One, two, three processes, and once more: every file is the same, and nothing else lies there."""
    digests = []
    for number, jobs in enumerate((1, 2, 3, 2)):
        target = tmp_path / f"{number}.brand"
        convert(target, jobs, 3)
        digests.append(tree_digest(target))
    assert digests[0] == digests[1] == digests[2] == digests[3]
    tops = {name.split("/")[0] for name in digests[0]}
    assert tops <= {"brand.json", "chunks", "index", "columns", "extras.zip"}
    assert [error for step in verify(tmp_path / "0.brand") for error in step.errors] == []


def test_another_seed_gives_other_chunks(convert: Convert, tmp_path: Path) -> None:
    """Each chunk file differs."""
    convert(tmp_path / "a", 1, 0)
    convert(tmp_path / "b", 1, 1)
    one, other = tree_digest(tmp_path / "a"), tree_digest(tmp_path / "b")
    assert one.keys() == other.keys()
    assert all(one[name] != other[name] for name in one if name.startswith("chunks/"))
    assert one.get("columns/label.npy") == other.get("columns/label.npy")


@pytest.mark.slow
def test_reindex_writes_the_same_bytes(convert: Convert, tmp_path: Path) -> None:
    """Manifest, index and columns come again from the chunks alone, byte for byte."""
    convert(tmp_path / "set", 2, 0)
    before = tree_digest(tmp_path / "set")
    (tmp_path / "set" / "brand.json").unlink()
    shutil.rmtree(tmp_path / "set" / "index")
    shutil.rmtree(tmp_path / "set" / "columns", ignore_errors=True)
    reindex(tmp_path / "set")
    assert tree_digest(tmp_path / "set") == before


@pytest.mark.slow
def test_unpacked_folders_convert_to_the_same_bytes(photos: Path, clips: Path, tmp_path: Path) -> None:
    """Convert, unpack, convert: the same data set, since the folder is the same."""
    plain = Options(chunk_size=5, jobs=2)
    convert_images(photos, tmp_path / "a", plain)
    unpack(tmp_path / "a", tmp_path / "photos")
    assert files_below(tmp_path / "photos") == files_below(photos)
    convert_images(tmp_path / "photos", tmp_path / "b", plain)
    assert tree_digest(tmp_path / "a") == tree_digest(tmp_path / "b")
    convert_audio(clips, tmp_path / "c", plain, transcripts=clips / "transcripts.tsv")
    unpack(tmp_path / "c", tmp_path / "clips")
    assert files_below(tmp_path / "clips") == files_below(clips)
    convert_audio(tmp_path / "clips", tmp_path / "d", plain, transcripts=tmp_path / "clips" / "transcripts.tsv")
    assert tree_digest(tmp_path / "c") == tree_digest(tmp_path / "d")


@pytest.mark.slow
def test_a_larger_real_set_is_the_same_for_any_number_of_processes(fashion: Path, tmp_path: Path) -> None:
    """3,000 pictures in 188 chunks."""
    for jobs in (1, 2, 3):
        convert_images(fashion / "train", tmp_path / str(jobs), Options(chunk_size=16, jobs=jobs))
    assert tree_digest(tmp_path / "1") == tree_digest(tmp_path / "2") == tree_digest(tmp_path / "3")
    unpack(tmp_path / "3", tmp_path / "back")
    assert tree_digest(tmp_path / "back") == tree_digest(fashion / "train")
