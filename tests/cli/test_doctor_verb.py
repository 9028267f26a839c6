"""`brand doctor`: what it says to people and to programs, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

import brand as library
from brand.doctor.packages import PURPOSES
from brand.doctor.selftest import STEPS
from tests.support import brand, brand_process

pytestmark = pytest.mark.slow


@pytest.fixture
def no_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is installed but cannot be imported: then the verb is quick."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)


def test_it_says_that_brand_works_here(photos_set: Path) -> None:
    """A part for each kind of check, in order, and a verdict; exit code 0."""
    told = brand("doctor", photos_set)
    assert told.code == 0, told.out
    lines = told.out.splitlines()
    parts = ["installed", "system", "limits", "data set", "self-test"]
    assert [line.strip() for line in lines if line.strip() in parts] == parts
    assert lines[-1].startswith("Brand works here")
    assert "self-test: 7 of 7 (100 %)" in told.err


def test_to_programs_it_is_one_document() -> None:
    """Each finding with its state, and the seconds of each step; nothing on stderr. In a process of its own."""
    told = brand_process("doctor", "--json")
    assert (told.code, told.err) == (0, "")
    assert (told.json["brand"], told.json["problems"]) == (library.__version__, 0)
    found = told.json["findings"]
    assert all(set(each) <= {"part", "name", "state", "told", "next", "seconds"} for each in found)
    names = [each["name"] for each in found if each["part"] == "installed"]
    assert names[:4] == ["brand", "core", "train", "audio"]
    assert names[2:] == [extra for extra in PURPOSES if extra in names]
    assert [each["name"] for each in found if each.get("seconds", -1) >= 0] == list(STEPS)
    assert {each["state"] for each in found if each["part"] != "data set"} <= {"ok", "missing"}


@pytest.mark.usefixtures("no_pytorch")
def test_problems_are_exit_code_1(tmp_path: Path) -> None:
    """They stand in their lines and are counted in the last one. No byte of a hostile name reaches the terminal."""
    told = brand("doctor", tmp_path / "a\x1b[31mb")
    assert told.code == 1
    text = " ".join(told.out.split())
    assert "problem train torch" in text
    assert "cannot be imported: ImportError: libcudart.so.13" in text
    assert "-> pip install --force-reinstall 'torch>=" in text
    assert "problem opens" in text
    assert told.out.splitlines()[-1].startswith("2 problems found; ")
    assert "\x1b[31m" not in told.out
    assert "a\\x1b[31mb" in told.out.replace("\n", "").replace(" ", "")


def test_two_data_sets_are_wrong_use() -> None:
    """One is enough."""
    assert brand("doctor", "a", "b").code == 2
