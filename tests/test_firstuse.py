"""`BrandDataset.from_folder`: the first use converts a folder, later uses find its chunks, and a changed folder is
converted again. Real files and processes, which are stopped and killed at chosen steps.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brand import BrandDataset
from brand.chunker import convert_audio, convert_images
from brand.errors import BrandError, ChecksumError, InterruptedConversionError, SourceError, StorageError, UsageError
from brand.firstuse import chunks_of, only_maker
from brand.storage.io.device import device_name, mount_of
from brand.storage.profile.profile import Profile, save_profile
from tests.support import LIMIT_S, options, tree_digest, wait_until
from tests.torch.test_exact_reads import folder_samples

CHUNK = 8
MOMENTS = ["00000001.brand", "brand.json", "STATE.brand"]
"""Files that a conversion publishes: its second chunk, its manifest, and the checked data set."""


@pytest.fixture
def folder(photos: Path, tmp_path: Path) -> Path:
    """A copy of the photos, which a test may change."""
    return Path(shutil.copytree(photos, tmp_path / "photos"))


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """The folder for the chunks, which does not exist yet."""
    return tmp_path / "chunks"


def made(where: Path) -> list[Path]:
    """The data sets in a folder for chunks that a next use would take."""
    return sorted(where.glob("*/*.brand"))


def use(folder: Path, where: Path, prelude: str = "") -> list[str]:
    """The command of a process that uses the folder and prints the keys of the samples; `prelude` is code before it."""
    code = f"""{prelude}
from brand import BrandDataset
ds = BrandDataset.from_folder({str(folder)!r}, {CHUNK}, {str(where)!r}, fields=("key",))
print(ds.id, *(ds[i][0] for i in range(len(ds))))
"""
    return [sys.executable, "-c", code]


@contextlib.contextmanager
def started(command: list[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, all of which ends with the block."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def stopped_before(moment: str, folder: Path, where: Path) -> Iterator[subprocess.Popen[str]]:
    """A first use that has stopped itself (SIGSTOP) before it publishes one of `MOMENTS`."""
    prelude = f"""
import os, signal, sys
me = os.getpid()

def stop(event, args):
    if event == "os.rename" and os.getpid() == me:
        old, new = map(os.path.basename, map(os.fsdecode, args[:2]))
        if new == {moment!r} or ({moment!r} == "STATE.brand" and old.startswith("unfinished-")):
            os.kill(me, signal.SIGSTOP)

sys.addaudithook(stop)
"""
    with started(use(folder, where, prelude)) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TZ", moment)  # stopped, or ended
        assert process.poll() is None
        yield process


@pytest.mark.slow
def test_the_samples_are_those_of_a_conversion_and_of_the_folder(folder: Path, where: Path, tmp_path: Path) -> None:
    """Byte for byte the data set of `convert_images`; order, labels and classes are those of ImageFolder."""
    ds = BrandDataset.from_folder(folder, CHUNK, where, decode=False)
    convert_images(folder, tmp_path / "converted.brand", options(CHUNK))
    assert tree_digest(Path(ds.path)) == tree_digest(tmp_path / "converted.brand")
    classes, samples = folder_samples(folder)
    assert ds.classes == classes
    assert [ds[i] for i in range(len(ds))] == samples


def test_the_second_use_finds_the_chunks(folder: Path, where: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is written again, and nothing waits, also while another process makes chunks; options are the user's."""
    caplog.set_level(logging.INFO, "brand")
    first = BrandDataset.from_folder(folder, CHUNK, where)
    assert f"{folder} is converted to {first.path}" in caplog.text
    caplog.clear()
    before = {path: path.stat().st_mtime_ns for path in where.rglob("*") if path.name != "lock"}
    with only_maker(Path(first.path).parent, folder):
        second = BrandDataset.from_folder(str(folder), CHUNK, str(where), fields=("key", "label"), transform=list)
    assert second.path == first.path
    assert second[3] == ["animals/fish28.webp", 0]
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert f"{folder} is in {first.path}" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in where.rglob("*") if path.name != "lock"} == before


def test_each_chunk_size_and_each_folder_has_its_own_chunks(folder: Path, where: Path) -> None:
    """Also if two folders have one name; 64 is the default."""
    other = Path(shutil.copytree(folder, folder.parent / "other" / folder.name))
    found = [chunks_of(folder, 64, where), chunks_of(folder, CHUNK, where), chunks_of(other, 64, where)]
    assert made(where) == sorted(found)
    assert BrandDataset.from_folder(folder, where=where).path == found[0]


def add(folder: Path) -> None:
    shutil.copy(folder / "tools" / "key.png", folder / "tools" / "zz.png")


def remove(folder: Path) -> None:
    (folder / "tools" / "key.png").unlink()


def rewrite(folder: Path) -> None:
    """Equally many bytes, with another date."""
    path = folder / "tools" / "key.png"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def grow(folder: Path) -> None:
    """More bytes, with the same date."""
    path = folder / "tools" / "key.png"
    date = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes() + b"!")
    os.utime(path, ns=(date, date))


def add_class(folder: Path) -> None:
    """Without images; the labels of later classes change."""
    (folder / "birds").mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("change", [add, remove, rewrite, grow, add_class])
def test_a_changed_folder_is_converted_again(
    folder: Path, where: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], None]
) -> None:
    """The samples are those of the folder as it is now. The log names the earlier chunks, which are still there."""
    earlier = BrandDataset.from_folder(folder, CHUNK, where, decode=False)
    before = tree_digest(Path(earlier.path))
    change(folder)
    ds = BrandDataset.from_folder(folder, CHUNK, where, decode=False)
    assert ([ds[i] for i in range(len(ds))], ds.classes) == (folder_samples(folder)[1], folder_samples(folder)[0])
    assert ds.path != earlier.path
    assert f"{folder} has changed since {earlier.path} was made of it" in caplog.text
    assert tree_digest(Path(earlier.path)) == before


@pytest.mark.slow
def test_hidden_files_and_the_order_of_a_listing_are_no_change(folder: Path, where: Path) -> None:
    """As a conversion ignores them. A folder that was changed and changed back has its first chunks."""
    first = chunks_of(folder, CHUNK, where)
    (folder / "tools" / ".DS_Store").write_bytes(b"1")
    (folder / "Thumbs.db").write_bytes(b"1")
    (folder / "tools").rename(folder / "moved")
    assert chunks_of(folder, CHUNK, where) != first
    (folder / "moved").rename(folder / "tools")
    assert chunks_of(folder, CHUNK, where) == first


@pytest.mark.slow
def test_processes_that_start_together_convert_once(folder: Path, where: Path) -> None:
    """Both wait for a third process. When that one ends, one of them converts, and both have the same data set."""
    place = chunks_of(folder, CHUNK, where).parent
    shutil.rmtree(made(where)[0])
    with contextlib.ExitStack() as stack:
        with only_maker(place, folder):
            each = [stack.enter_context(started(use(folder, where))) for _ in range(2)]
            told = [process.stderr.readline() for process in each if process.stderr is not None]
        ended = [process.communicate(timeout=LIMIT_S) for process in each]
    assert [process.returncode for process in each] == [0, 0]
    for line in told:
        assert line.startswith(f"process {os.getpid()} on ")
        assert f"makes the chunks of {folder}" in line
    assert ended[0][0] == ended[1][0]
    assert sorted(err.count("is converted to") for _, err in ended) == [0, 1]
    assert len(made(where)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_first_use_leaves_no_data_set_and_goes_on(
    folder: Path, where: Path, tmp_path: Path, moment: str
) -> None:
    """SIGKILL to all its processes at any step: the next use finishes, with the bytes of a conversion at one go."""
    with stopped_before(moment, folder, where) as process:
        assert made(where) == []
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
    assert made(where) == []
    found = chunks_of(folder, CHUNK, where)
    convert_images(folder, tmp_path / "converted.brand", options(CHUNK))
    assert tree_digest(found) == tree_digest(tmp_path / "converted.brand")
    assert sorted(path.name for path in found.parent.iterdir()) == sorted([found.name, "lock"])


@pytest.mark.slow
def test_an_unfinished_conversion_of_an_earlier_state_is_removed(folder: Path, where: Path) -> None:
    """Its folder will not be in that state again, and nobody reads it."""
    with stopped_before(MOMENTS[0], folder, where) as process:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
    add(folder)
    found = chunks_of(folder, CHUNK, where)
    assert sorted(path.name for path in found.parent.iterdir()) == sorted([found.name, "lock"])
    assert len(BrandDataset(found)) == 32


@pytest.mark.slow
def test_a_folder_that_changes_while_it_is_converted_is_an_error(folder: Path, where: Path) -> None:
    """The conversion does not see a file that is added meanwhile. The next call converts it, too."""
    with stopped_before(MOMENTS[0], folder, where) as process:
        add(folder)
        process.send_signal(signal.SIGCONT)
        err = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 1
    assert f"SourceError: {folder}: its files changed while it was converted. Call again" in err
    assert made(where) == []
    assert len(BrandDataset.from_folder(folder, CHUNK, where)) == 32


@pytest.mark.slow
def test_chunks_that_are_damaged_when_they_are_checked_are_not_loaded(folder: Path, where: Path) -> None:
    """A byte of a chunk changes before the check: an error, and the next call converts again."""
    with stopped_before("brand.json", folder, where) as process:
        chunk = next(where.glob("*/unfinished-*/chunks/00000001.brand"))
        data = chunk.read_bytes()
        chunk.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        process.send_signal(signal.SIGCONT)
        err = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 1
    assert ChecksumError.__name__ in err
    assert "the next call converts again" in err
    assert list(where.glob("*/*.brand")) + list(where.glob("*/unfinished-*")) == []
    assert len(BrandDataset.from_folder(folder, CHUNK, where)) == 31


def test_a_process_without_progress_is_not_waited_for(tmp_path: Path) -> None:
    """The error names it and the cure. It continues to hold the lock."""
    with only_maker(tmp_path, "photos"):
        told = f"process {os.getpid()} on .* makes the chunks of photos in .*: end it, and call again"
        with pytest.raises(InterruptedConversionError, match=told), only_maker(tmp_path, "photos", 0.0):
            pass


def test_the_default_is_the_cache_of_the_user(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Below XDG_CACHE_HOME, closed to other users, and named in the log."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ds = BrandDataset.from_folder(folder, CHUNK)
    place = Path(ds.path).parent
    assert place.parent == tmp_path / "cache" / "brand" / "folders"
    assert place.name.startswith("photos-")
    assert place.stat().st_mode & 0o077 == 0
    assert str(ds.path) in caplog.text


@pytest.mark.slow
def test_the_size_that_a_profile_gives(
    folder: Path, where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four stripes of the storage of `where` to a chunk. Without a profile, the error says how to measure one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match=r"has not been measured\. `brand profile PATH` measures it"):
        BrandDataset.from_folder(folder, "profile", where)
    device = device_name(mount_of(tmp_path))
    save_profile(Profile(device, (1 << 15, 1 << 16, 1 << 20), (1,), ((50e6, 100e6, 100e6),), 100e6))
    ds = BrandDataset.from_folder(folder, "profile", where)
    convert_images(folder, tmp_path / "converted.brand", options(chunk_bytes=4 * 60945))
    assert tree_digest(Path(ds.path)) == tree_digest(tmp_path / "converted.brand")
    save_profile(Profile(device, (1 << 15, 1 << 20), (1,), ((50e6, 100e6),), 100e6))
    assert BrandDataset.from_folder(folder, "profile", where).path == ds.path


@pytest.mark.slow
def test_a_folder_of_audio(clips: Path, where: Path, tmp_path: Path) -> None:
    """As `convert_audio` makes it, with class folders as labels."""
    folder = Path(shutil.copytree(clips, tmp_path / "clips", ignore=shutil.ignore_patterns("*.tsv", "*.md", "*.txt")))
    ds = BrandDataset.from_folder(folder, CHUNK, where)
    convert_audio(folder, tmp_path / "converted.brand", options(CHUNK))
    assert tree_digest(Path(ds.path)) == tree_digest(tmp_path / "converted.brand")
    assert len(ds) == 41


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal_only(folder: Path, where: Path) -> None:
    """The bars of the command, with the check of the chunks; a log in a file has the line of the log alone."""
    mine, its = pty.openpty()
    with started(use(folder, where), stderr=its) as process, open(mine, "rb", buffering=0) as terminal:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while data := terminal.read(4096):
                shown += data
        assert process.wait(LIMIT_S) == 0
    assert b"pack" in shown
    assert b"verify" in shown
    shutil.rmtree(where)
    with started(use(folder, where)) as process:
        lines = process.communicate(timeout=LIMIT_S)[1].splitlines()
    assert len(lines) == 1
    assert "is converted to" in lines[0]


def test_a_wrong_call_names_the_cure_and_writes_nothing(folder: Path, where: Path, tmp_path: Path) -> None:
    """Before anything is converted."""
    (tmp_path / "empty").mkdir()
    converted = chunks_of(folder, CHUNK, tmp_path / "earlier")
    wrong: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (UsageError, "there is no such folder", (tmp_path / "missing", CHUNK, where), {}),
        (UsageError, "is a file, not a folder", (folder / "tools" / "key.png", CHUNK, where), {}),
        (UsageError, "is a converted data set already", (converted, CHUNK, where), {}),
        (UsageError, "a source is read from the disk of this machine", ("s3://bucket/photos", CHUNK, where), {}),
        (UsageError, "is inside .*: choose a folder outside", (folder, CHUNK, folder / "chunks"), {}),
        (UsageError, "give a folder of this machine", (folder, CHUNK, "s3://bucket/chunks"), {}),
        (UsageError, "give a number of samples, or 'profile'", (folder, "64", where), {}),
        (UsageError, "a chunk has 1 to", (folder, 0, where), {}),
        (TypeError, "memroy", (folder, CHUNK, where), {"memroy": "8GB"}),
    ]
    for kind, told, arguments, more in wrong:
        with pytest.raises(kind, match=told):
            BrandDataset.from_folder(*arguments, **more)
    assert not where.exists()
    assert not (folder / "chunks").exists()


def test_a_folder_that_cannot_be_converted_leaves_no_data_set(folder: Path, where: Path, tmp_path: Path) -> None:
    """Empty, of two splits, or with a text: the error of the conversion, and the command that has its options."""
    (tmp_path / "empty").mkdir()
    splits = tmp_path / "splits"
    for name in ("train", "test"):
        shutil.copytree(folder, splits / name)
    (folder / "tools" / "notes.txt").write_text("a text")
    for source, kind, told, noted in (
        (tmp_path / "empty", SourceError, "there are no files in this folder", 0),
        (splits, UsageError, "holds the splits test, train", 1),
        (folder, SourceError, "notes.txt", 1),
    ):
        with pytest.raises(BrandError, match=told) as caught:
            BrandDataset.from_folder(source, CHUNK, where)
        assert isinstance(caught.value, kind)
        notes = getattr(caught.value, "__notes__", [])
        assert sum(f"`brand convert images {source} DST` does" in note for note in notes) == noted
    assert list(where.glob("*/*.brand")) + list(where.glob("*/unfinished-*")) == []


def test_a_place_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    """With the cure."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot write .*file.*: name a folder that you can write with where="):
        BrandDataset.from_folder(folder, CHUNK, tmp_path / "file")
