"""`brand seal` makes a data set of chunks alone, and says which are missing, damaged or foreign, and who makes them."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brand.chunker import Options, convert_images
from brand.chunker.distributed import Task, plan_images, run, run_task, seal
from brand.chunker.tasks.planning import read_decided
from brand.chunker.work.chunks import KeptChunks, keep_chunk
from brand.errors import BrandError, MissingChunksError, MissingFileError, NotADataSetError, TargetExistsError
from tests.chunker.crashes import steps_survived
from tests.support import brand, tree_digest

PLAIN = Options(chunk_size=8, jobs=1)


@pytest.fixture
def target(fashion: Path, tmp_path: Path) -> Path:
    """600 pictures in 75 chunks, made in five parts, and not sealed."""
    place = tmp_path / "set"
    job = plan_images(fashion / "test", place, PLAIN, tasks=5)
    for number in range(job.chunks):
        run(job, number)
    return place


@pytest.fixture(scope="module")
def whole(fashion: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process makes of them."""
    place = tmp_path_factory.mktemp("whole") / "set"
    convert_images(fashion / "test", place, PLAIN)
    return tree_digest(place)


def chunk(target: Path, number: int) -> Path:
    return target / "chunks" / f"{number:08d}.brand"


def make_again(fashion: Path, target: Path, *parts: int) -> None:
    for number in parts:
        run_task(plan_images(fashion / "test", target, PLAIN, tasks=5), Task(number, 5), jobs=1)


def test_missing_chunks_are_told_with_the_parts_that_make_them(
    fashion: Path, target: Path, whole: dict[str, str]
) -> None:
    """On the screen and as JSON, with exit code 1; nothing is changed."""
    for number in (0, 31, 32):
        chunk(target, number).unlink()
    before = tree_digest(target)
    told = brand("seal", target)
    assert told.code == 1
    assert "3 chunks of 75 are missing" in told.err
    assert "`brand convert ... --task 0/5` makes 1 chunk, the first is 0" in told.err
    assert "`brand convert ... --task 2/5` makes 2 chunks, the first is 31" in told.err
    listed = brand("seal", target, "--json")
    assert listed.code == 1
    assert listed.json == {"target": str(target), "missing": [0, 31, 32], "tasks": {"0/5": [0], "2/5": [31, 32]}}
    assert tree_digest(target) == before
    make_again(fashion, target, 0, 2)
    assert brand("seal", target).code == 0
    assert tree_digest(target) == whole


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)


def swap(path: Path) -> None:
    shutil.copy(path.with_name("00000007.brand"), path)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, "shorter than its preamble says"),
    "empty": (empty, "too short for a chunk file"),
    "flipped": (flip, "checksum of header and table"),
    "another chunk": (swap, "this is chunk 7"),
}


@pytest.mark.parametrize("which", DAMAGES)
def test_a_damaged_chunk_is_named_and_made_again(
    fashion: Path, target: Path, whole: dict[str, str], which: str
) -> None:
    """Its part makes it again, and nothing else."""
    damage, why = DAMAGES[which]
    damage(chunk(target, 40))
    told = brand("seal", target)
    assert told.code == 1
    assert "1 chunk of 75 is missing or damaged" in told.err
    assert "00000040.brand" in told.err
    assert why in told.err
    assert "--task 2/5" in told.err
    assert not (target / "brand.json").exists()
    make_again(fashion, target, 2)
    seal(target)
    assert tree_digest(target) == whole


@pytest.mark.slow
def test_a_chunk_of_another_plan_is_refused(fashion: Path, target: Path, tmp_path: Path, whole: dict[str, str]) -> None:
    """The same number and the same size, but of another seed."""
    convert_images(fashion / "test", tmp_path / "other", Options(seed=1, chunk_size=8, jobs=1))
    shutil.copy(chunk(tmp_path / "other", 12), chunk(target, 12))
    with pytest.raises(MissingChunksError) as caught:
        seal(target)
    assert caught.value.chunks == (12,)
    assert "a chunk of another data set" in "".join(caught.value.__notes__)
    make_again(fashion, target, 0)
    seal(target)
    assert tree_digest(target) == whole


def test_what_was_kept_is_not_needed_and_not_believed_blindly(target: Path, whole: dict[str, str]) -> None:
    """Without it, with it damaged, and with that of another chunk, the chunks themselves are read."""
    kept = target / ".brand-work" / "kept"
    (kept / "3").unlink()
    damaged = bytearray((kept / "4").read_bytes())
    damaged[-20] ^= 1
    (kept / "4").write_bytes(damaged)
    shutil.copy(kept / "6", kept / "5")
    seal(target)
    assert tree_digest(target) == whole


def test_what_was_kept_of_an_earlier_chunk_is_not_believed(target: Path, whole: dict[str, str]) -> None:
    """It has the size and the place of the chunk, but not the checksum of its front."""
    kept = target / ".brand-work" / "kept"
    job = read_decided(target / ".brand-work" / "plan").plan
    found = KeptChunks(kept, {8: chunk(target, 8).stat().st_size}).find(job, 8)
    assert found is not None
    labels = found.columns.copy()
    labels["label"] = 9 - labels["label"]
    keep_chunk(kept, job.data_set_id, 8, replace(found, checksum=found.checksum ^ 1, columns=labels))
    seal(target)
    assert tree_digest(target) == whole


def test_a_damaged_sample_is_found_where_nothing_was_kept(target: Path) -> None:
    """The fixed fields come from the samples then, and their checksums are compared."""
    shutil.rmtree(target / ".brand-work" / "kept")
    data = bytearray(chunk(target, 9).read_bytes())
    data[-5] ^= 1
    chunk(target, 9).write_bytes(data)
    with pytest.raises(MissingChunksError) as caught:
        seal(target)
    assert caught.value.tasks == {"0/5": [9]}
    assert "the sample's bytes have changed" in "".join(caught.value.__notes__)


def test_sealing_again_changes_nothing(target: Path, whole: dict[str, str]) -> None:
    """Exit code 0, and the report says so."""
    seal(target)
    again = brand("seal", target, "--json")
    assert again.code == 0
    assert again.json["samples"] == 600
    assert again.json["notes"] == ["It was finished already; nothing was changed"]
    assert tree_digest(target) == whole


@pytest.mark.slow
def test_what_is_no_conversion_in_parts_is_refused(fashion: Path, tmp_path: Path) -> None:
    """No folder, a folder of something else, a conversion in one process that was stopped, a store."""
    (tmp_path / "empty").mkdir()
    for name, message in (("nowhere", "there is no such folder"), ("empty", "not a data set")):
        told = brand("seal", tmp_path / name)
        assert told.code == 1
        assert message in told.err
    convert_images(fashion / "test", tmp_path / "plain", PLAIN)
    (tmp_path / "plain" / "brand.json").unlink()
    (tmp_path / "plain" / ".brand-work").mkdir()
    with pytest.raises(NotADataSetError, match="run the same `brand convert` command again"):
        seal(tmp_path / "plain")
    told = brand("seal", "s3://bucket/set")
    assert told.code == 2
    assert "writes to a folder of this machine" in told.err


def test_an_unfinished_set_says_who_finishes_it(target: Path) -> None:
    """`info` and `reindex` name `brand seal`."""
    for verb in ("info", "reindex"):
        told = brand(verb, target)
        assert told.code == 1
        assert "`brand seal`" in told.err


def test_while_a_part_works_nothing_is_sealed(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a moment, and then says so."""
    monkeypatch.setattr("brand.chunker.tasks.sealing.LOCK_WAIT_S", 0.0)
    with (target / ".brand-work" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with pytest.raises(TargetExistsError, match="another conversion is writing there"):
            seal(target)
    seal(target)


def test_a_companion_that_was_removed_is_missed(photos: Path, tmp_path: Path) -> None:
    """The plan knows that there was one."""
    source, place = tmp_path / "source", tmp_path / "set"
    shutil.copytree(photos, source)
    (source / "empty").mkdir()
    job = plan_images(source, place, PLAIN)
    for number in range(job.chunks):
        run(job, number)
    (place / ".brand-work" / "plan" / "extras.zip").unlink()
    with pytest.raises(MissingFileError, match="is missing"):
        seal(place)


def test_without_parts_the_message_names_the_command(photos: Path, tmp_path: Path) -> None:
    """A plan that an engine works on was not divided."""
    job = plan_images(photos, tmp_path / "set", PLAIN)
    run(job, 0)
    with pytest.raises(MissingChunksError) as caught:
        seal(job.target)
    assert caught.value.tasks == {}
    assert "run it again" in "".join(caught.value.__notes__)
    assert isinstance(caught.value, BrandError)


@pytest.mark.slow
@pytest.mark.parametrize(("call", "least"), [("fsync", 20), ("replace", 8), ("rename", 1), ("unlink", 1), ("rmdir", 3)])
def test_a_crash_before_any_step_is_survived(photos: Path, tmp_path: Path, call: str, least: int) -> None:
    """The process ends before its 1st, 2nd, 3rd ... fsync, rename or removal; the same commands go on."""
    source = tmp_path / "source"
    shutil.copytree(photos, source)
    (source / "empty").mkdir()
    assert steps_survived("images in parts", source, tmp_path, call) >= least
