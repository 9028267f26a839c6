"""The reader of tar files finds what Python's library finds, in stretches of any size, and nothing in damaged ones."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker.importers import webdataset
from brand.chunker.importers.webdataset import members
from brand.errors import SourceError
from brand.storage.dataset.dataset import StoredDataSet
from tests.rounds import examples
from tests.support import brand

Files = list[tuple[str, bytes]]
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
PART = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
NAMES = st.one_of(
    st.lists(PART, min_size=1, max_size=6).map("/".join),
    st.integers(90, 300).map(lambda size: f"{'f' * (size // 2)}/{'n' * (size - size // 2)}.jpg"),
).filter(lambda name: name.strip("./") == name)
CONTENTS = st.one_of(st.binary(max_size=40), st.integers(0, 3000).map(lambda size: b"x" * size))
ENTRIES = st.lists(st.tuples(NAMES, CONTENTS, st.sampled_from([0, 5, 1234.5])), max_size=8)


def written(entries: list[tuple[str, bytes, float]], form: int) -> bytes:
    """An archive of these files, with a folder before each; a date that is no whole number takes a pax header."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data, date in entries:
            folder, member = tarfile.TarInfo("folder"), tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            member.size, member.mtime = len(data), date
            tar.addfile(folder)
            try:
                tar.addfile(member, io.BytesIO(data))
            except ValueError:  # ustar has no room for this name
                assert form == tarfile.USTAR_FORMAT
    return buffer.getvalue()


def found(data: bytes) -> Files:
    """What the reader finds."""
    return [(name, bytes(contents)) for name, contents in members(io.BytesIO(data), "x.tar") if contents is not None]


def expected(data: bytes) -> Files:
    """The slow model: what the library finds. Raises tarfile.TarError."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = ((member.name, tar.extractfile(member)) for member in tar if member.isreg())
        return [(name, file.read()) for name, file in files if file is not None]


@pytest.mark.slow
@examples(150)
@given(
    st.lists(st.tuples(ENTRIES, st.sampled_from(FORMATS)), min_size=1, max_size=3),
    st.integers(1, 5000),
    st.integers(1, 3000),
)
def test_it_finds_what_the_library_finds(
    archives: list[tuple[list[tuple[str, bytes, float]], int]], size: int, large: int
) -> None:
    """In archives that lie one behind the other, read in stretches of any size; large files from any size on."""
    parts = [written(entries, form) for entries, form in archives]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webdataset, "_STRETCH", size)
        patch.setattr(webdataset, "LARGE_FILE", large)
        assert found(b"".join(parts)) == [file for part in parts for file in expected(part)]


@pytest.mark.slow
@examples(150)
@given(ENTRIES.filter(bool), st.sampled_from(FORMATS), st.data(), st.sampled_from([1, 1 << 20]))
def test_an_archive_that_is_cut_short_is_an_error(
    entries: list[tuple[str, bytes, float]], form: int, data: st.DataObject, large: int
) -> None:
    """Wherever it is cut before the mark of its end. The mark is one block of zeros, or more."""
    whole = written(entries, form)
    end = len(whole.rstrip(b"\0"))
    at = data.draw(st.integers(0, end))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webdataset, "_STRETCH", 700)
        patch.setattr(webdataset, "LARGE_FILE", large)
        with pytest.raises(SourceError, match=r"^x\.tar: .*(truncated|damaged)"):
            found(whole[:at])


@pytest.mark.slow
@examples(300)
@given(ENTRIES.filter(bool), st.sampled_from(FORMATS), st.data(), st.sampled_from([1, 1 << 20]))
def test_a_damaged_byte_is_an_error_or_what_the_library_finds(
    entries: list[tuple[str, bytes, float]], form: int, data: st.DataObject, large: int
) -> None:
    """Contents have no checksum in a tar file. Headers have; the library itself ends at some that are damaged."""
    whole = bytearray(written(entries, form))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webdataset, "_STRETCH", 700)
        patch.setattr(webdataset, "LARGE_FILE", large)
        try:
            files = found(bytes(whole))
        except SourceError:
            return
    assert files == expected(bytes(whole))


def head_of(name: str = "a.txt", size: int = 0, **more: object) -> bytes:
    """A header with a right checksum."""
    member = tarfile.TarInfo(name)
    member.size = size
    for field, value in more.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.GNU_FORMAT)


def summed(head: bytes, at: int, field: bytes) -> bytes:
    """A header with another field, and the checksum that it then has."""
    head = head[:at] + field + head[at + len(field) :]
    total = sum(head[:148]) + 8 * ord(" ") + sum(head[156:])
    return head[:148] + b"%06o\0 " % total + head[156:]


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    """A header of such records, in front of a file."""
    filled = records + bytes(-len(records) % 512)
    return head_of("pax", len(records), type=kind) + filled + head_of(size=3) + b"abc".ljust(512, b"\0") + bytes(1024)


def record(key: str, value: str) -> bytes:
    """A record of a pax header."""
    rest = f" {key}={value}\n".encode()
    size = next(size for size in range(len(rest), len(rest) + 9) if len(str(size)) + len(rest) == size)
    return str(size).encode() + rest


END = bytes(1024)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (summed(head_of(), 124, b"00000000009\0") + END, "for a number"),
        (summed(head_of(), 124, b"-0000000001\0") + END, "for a number"),
        (summed(head_of(), 124, b"\xff" * 12) + END, "for a number"),
        (summed(head_of(), 124, b"\x80" + b"\xff" * 11) + END, "bytes follow it, and the limit is"),
        (summed(head_of(), 124, b"\x80" + bytes(6) + b"\xff" + bytes(4)) + END, "bytes follow it, and the limit is"),
        (summed(head_of(), 124, b"77777777777\0") + END, "bytes follow it, and the limit is"),
        (summed(head_of(), 124, b"07777777777\0") + END, "it is truncated within 'a.txt'"),
        (head_of()[:148] + b"        " + head_of()[156:] + END, "its checksum differs"),
        (head_of()[:148] + b"12x456\0 " + head_of()[156:] + END, "for a number"),
        (head_of(type=tarfile.GNUTYPE_SPARSE) + END, "is a sparse file"),
        (head_of(type=b"?") + END, "of the unknown type"),
        (head_of("long", 5, type=b"L") + b"a.txt".ljust(512, b"\0") + END, "the header that follows it"),
        (head_of("long", 5, type=b"L") + b"a.txt".ljust(512, b"\0"), "without the mark of its end"),
        (head_of("long", 1 << 21, type=b"L") + bytes(1 << 21) + END, "bytes follow it, and the limit is"),
        (pax(record("GNU.sparse.major", "1")), "sparse"),
        (pax(record("path", "b.txt"), b"g"), "it sets the path of all files"),
        (pax(record("size", "x")), "for a number"),
        (pax(record("size", "-1")), "for a number"),
        (pax(record("size", "9" * 5000)), "for a number"),
        (pax(record("size", "99999")), "truncated within 'a.txt'"),
        (pax(b"0 path=b\n"), "a record of it is malformed"),
        (pax(b"99 path=b\n"), "a record of it is malformed"),
        (pax(b"8 path=b\n"), "a record of it is malformed"),
        (pax(b"10 path b.\n"), "a record of it is malformed"),
        (pax(b"x path=b\n"), "for a number"),
    ],
)
def test_a_field_that_cannot_be_is_refused(data: bytes, says: str) -> None:
    """Also where its checksum is right, and before memory is taken for it."""
    with pytest.raises(SourceError, match=says):
        found(data)


@pytest.mark.parametrize(
    ("data", "files"),
    [
        (pax(record("comment", "a commit"), b"g"), [("a.txt", b"abc")]),
        (pax(record("path", "b é.txt") + record("mtime", "1.5")), [("b é.txt", b"abc")]),
        (pax(record("size", "2")), [("a.txt", b"ab")]),
        (pax(record("path", "c"), b"X"), [("c", b"abc")]),
        (
            summed(head_of(size=3), 124, b"\x80" + bytes(10) + b"\3") + b"abc".ljust(512, b"\0") + END,
            [("a.txt", b"abc")],
        ),
        (head_of("a.txt", type=b"7") + END, [("a.txt", b"")]),
        (head_of("folder/", type=b"\0") + END, []),
        (summed(head_of(), 345, b"when") + END, [("a.txt", b"")]),
        (END, []),
    ],
)
def test_what_other_programs_write_is_read(data: bytes, files: Files) -> None:
    """Records, large numbers, old types; GNU's times stand where ustar has the front of a name."""
    assert found(data) == files


def test_signed_checksums_of_old_programs_are_right() -> None:
    """They took bytes for signed numbers."""
    head = head_of("é.txt")
    signed = sum(head[:148]) + sum(head[156:]) + 8 * ord(" ") - 256 * sum(byte > 127 for byte in head)
    assert found(head[:148] + b"%06o\0 " % signed + head[156:] + END) == [("é.txt", b"")]


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs the program tar")
@pytest.mark.parametrize("form", ["v7", "ustar", "gnu", "oldgnu", "pax"])
def test_archives_of_the_program_tar(form: str, tmp_path: Path) -> None:
    """All the formats that it writes."""
    folder = tmp_path / "files"
    folder.mkdir()
    files = {f"{number:03d}.{'long' * (number % 20)}.txt": b"x" * (37 * number) for number in range(40)}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    subprocess.run(
        ["tar", f"--format={form}", "--sort=name", "-cf", tmp_path / "x.tar", "-C", tmp_path, "files"], check=True
    )
    assert found((tmp_path / "x.tar").read_bytes()) == [(f"files/{name}", data) for name, data in sorted(files.items())]


def test_endings_are_read_in_lower_case(tmp_path: Path) -> None:
    """As webdataset reads them: `.TXT` and `.txt`, alone and after another dot, are one field."""
    files = [
        ("1.left.TXT", b"a"),
        ("1.CLS", b"1"),
        ("2.left.txt", b"b"),
        ("2.cls", b"2"),
        ("3.Left.Txt", b"c"),
        ("3.Cls", b"3"),
    ]
    (tmp_path / "x.tar").write_bytes(written([(name, data, 0.0) for name, data in files], tarfile.USTAR_FORMAT))
    told = brand("convert", "webdataset", tmp_path / "x.tar", tmp_path / "set", "-j", 1)
    assert told.code == 0, told.err
    stored = StoredDataSet(tmp_path / "set")
    assert [(s["left_txt"], s["label"]) for s in map(stored.sample, range(3))] == [("a", 1), ("b", 2), ("c", 3)]
