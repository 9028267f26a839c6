"""A name with a terminal escape, a bell, a line break or an override is shown as escapes by every verb and message."""

from __future__ import annotations

import logging
import os
import re
import shutil
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from brand import BrandDataset, pack
from brand.chunker import convert_images
from brand.errors import FormatError, SourceError, UsageError
from brand.printable import unescaped
from tests.support import Outcome, brand, brand_process, options

CLASS = "evil\x1b[31m\nbrand: forged\x9b\u202e"
PICTURE = "one\a\ttwo\r\n.png"
BAD = ["\\x07\n.png", "\x07.png", "bad\n\tline.png", os.fsdecode(b"\xff\n.png"), "slash\\.png"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder below a folder with such a name, with a good picture and bad ones."""
    folder = tmp_path_factory.mktemp("hostile") / "src\x1b]0;owned\a\n"
    (folder / CLASS).mkdir(parents=True)
    Image.new("RGB", (2, 2)).save(folder / CLASS / PICTURE, "PNG")
    for name in BAD:
        (folder / CLASS / name).write_bytes(b"no picture at all, whatever its name says\0")
    return folder


def assert_harmless(told: Outcome) -> None:
    """Nothing acts on a terminal, and no line begins as the name wants it to."""
    for text in (told.out, told.err):
        acting = [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n"]
        assert acting == [], text
        assert not re.search(r"^brand: forged", text, re.MULTILINE)


@pytest.mark.slow
def test_every_verb_shows_such_names_escaped(hostile: Path, tmp_path: Path) -> None:
    """Paths, class names, keys and what is wrong; and the line count is that of the verb, not of the name."""
    target = tmp_path / "set\x1b[2J\n"
    for args in (
        ("convert", "images", hostile, target),
        ("convert", "images", hostile, target, "--on-error", "skip", "--dry-run"),
        ("convert", "images", hostile, target, "--on-error", "skip"),
        ("convert", "images", hostile, target, "--on-error", "skip"),
        ("info", target),
        ("cat", target, 0),
        ("cat", target, 1),
        ("cat", target, 0, "--field", "no\x1b\nne"),
        ("verify", target),
        ("partition", target, tmp_path / "share\n{node}", "--nodes", 1),
        ("reindex", target),
        ("unpack", target, tmp_path / "out\x1b\n"),
        ("info", hostile),
        ("verify", hostile),
        ("convert", "audio", hostile, tmp_path / "other\a"),
        ("convert", "images", target / "\x1b\nnone", tmp_path / "third"),
        ("covert\x1b\n",),
        ("info", target, "--x\x1b\n"),
        ("profile", target / "\x1b\nnone"),
        ("serve", target / "\x1b\nnone"),
        ("top", "unix:@\x1b\nnobody"),
    ):
        told = brand(*args)
        assert "Traceback" not in told.err, (args, told.err)
        assert_harmless(told)
    info = brand("info", target)
    assert "evil\\x1b[31m\\nbrand: forged\\u009b\\u202e  1" in info.out
    assert "/one\\x07\\ttwo\\r\\n.png" in brand("cat", target, 0).out


def test_a_damaged_set_is_told_without_harm(hostile: Path, tmp_path: Path) -> None:
    """`verify` names the chunk on a line of its own, under a path that holds line breaks."""
    target = tmp_path / "set\x1b\n"
    convert_images(hostile, target, options(skip_errors=True))
    chunk = next((target / "chunks").iterdir())
    data = bytearray(chunk.read_bytes())
    data[-5] ^= 1
    chunk.write_bytes(data)
    told = brand("verify", target)
    assert told.code == 1
    assert_harmless(told)
    assert len(told.out.splitlines()) == 1


def test_json_is_json_whose_values_are_the_names(hostile: Path, tmp_path: Path) -> None:
    """A machine gets the names as they are; the document itself holds nothing that acts."""
    target = tmp_path / "set\x9b\n"
    told = brand("convert", "images", hostile, target, "--on-error", "skip", "--json")
    assert_harmless(told)
    assert told.json["target"] == str(target)
    assert told.json["classes"] == [CLASS]
    assert brand("cat", target, 0, "--json").json["key"] == f"{CLASS}/{PICTURE}"
    assert_harmless(brand("info", target / "none\x1b\n", "--json"))


def test_skipped_tsv_gives_every_name_back(hostile: Path, tmp_path: Path) -> None:
    """Two cells a line whatever the name is, and `unescaped` of the first is the file's name, bit for bit."""
    report = convert_images(hostile, tmp_path / "set", options(skip_errors=True))
    data = (tmp_path / "set" / "skipped.tsv").read_bytes()
    head, *lines = data.decode("ascii").removesuffix("\n").split("\n")
    assert head == "path\treason"
    rows = [line.split("\t") for line in lines]
    assert {len(row) for row in rows} == {2}
    assert sorted(unescaped(path) for path, _ in rows) == sorted(f"{CLASS}/{name}" for name in BAD)
    assert all((hostile / unescaped(path)).is_file() for path, _ in rows)
    assert [(problem.path, problem.reason) for problem in report.skipped] == [tuple(row) for row in rows]


@pytest.mark.slow
def test_a_text_on_a_terminal_does_not_act(tmp_path: Path) -> None:
    """`cat` shows the texts of a sample on one line each; `--field` into a pipe gives the text as it is."""
    text = "one\x1b[31m\ntwo\u202e"
    pack([{"text": text, "list": 1}], tmp_path / "set", {"text": "str", "list": "json"}, jobs=1)
    told = brand("cat", tmp_path / "set", 0)
    assert_harmless(told)
    assert "one\\x1b[31m\\ntwo\\u202e" in told.out
    assert brand_process("cat", tmp_path / "set", 0, "--field", "text").out == text + "\n"


def test_class_names_are_no_markup(tmp_path: Path) -> None:
    """What looks like the markup or the pictures of a library for terminals is a name."""
    for name in ("[bold red]x", ":bomb:", "back\\"):
        (tmp_path / "src" / name).mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(tmp_path / "src" / name / "1.png")
    convert_images(tmp_path / "src", tmp_path / "set", options())
    shown = brand("info", tmp_path / "set").out
    for name in ("[bold red]x", ":bomb:", "back\\"):
        assert f"{name}  1" in shown


def test_errors_and_logs_show_them_escaped(hostile: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Exceptions have the names as attributes, and escapes in their text; so do lines of the log."""
    with pytest.raises(SourceError) as failed:
        convert_images(hostile, tmp_path / "set", options(validate=True))
    assert "\n" not in str(failed.value)
    assert "\x1b" not in str(failed.value)
    with pytest.raises(UsageError) as wrong:
        convert_images(tmp_path / "none\x1b[31m", tmp_path / "set")
    assert str(wrong.value).startswith(f"{tmp_path}/none\\x1b[31m: ")
    target = tmp_path / "damaged\x1b\n"
    data = [{"n": k, "text": "x" * k} for k in range(200)]
    pack(data, target, {"n": "int", "text": "str"}, chunk_size=10, compression="none", jobs=1)
    shutil.rmtree(target / "chunks")
    with pytest.raises(FormatError) as missing:
        BrandDataset(target)[3]
    assert str(missing.value.path).startswith(str(target))
    assert_harmless(Outcome(0, b"", str(missing.value)))
    assert "damaged\\x1b\\n/chunks" in str(missing.value)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
