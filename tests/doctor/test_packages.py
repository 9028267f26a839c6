"""What is installed and what is missing for what: requirements are read, versions compared, imports tried."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from brand.doctor import packages
from brand.doctor.packages import (
    DEVELOPERS,
    PURPOSES,
    CheckResult,
    Requirement,
    at_least,
    check_packages,
    import_faults,
    judge,
    parse,
)

NEEDED = [
    Requirement("numpy", "1.26", ""),
    Requirement("pillow", "10", ""),
    Requirement("torch", "2.3", "train"),
    Requirement("simplejpeg", "1.7", "train"),
    Requirement("soundfile", "0.12", "audio"),
    Requirement("pytest", "8", "dev"),
]
THERE = {"numpy": "2.4.6", "pillow": "13.0.0", "torch": "2.13.0+cpu", "simplejpeg": "1.9.0", "soundfile": "0.14.0"}


def findings(versions: Mapping[str, str], faults: Mapping[str, str] | None = None) -> dict[str, CheckResult]:
    """By name."""
    return {each.name: each for each in judge(NEEDED, versions, faults or {})}


def without(*names: str) -> dict[str, str]:
    """All packages but these."""
    return {name: version for name, version in THERE.items() if name not in names}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("numpy>=1.26", Requirement("numpy", "1.26", "")),
        ('torch>=2.3; extra == "train"', Requirement("torch", "2.3", "train")),
        ("torch>=2.3 ; extra == 'train'", Requirement("torch", "2.3", "train")),
        ('moto[s3]>=5.1; extra == "dev"', Requirement("moto", "5.1", "dev")),
        ('torch==2.13.0; extra == "dev"', Requirement("torch", "", "dev")),
        ('Some_Thing.Else (<3,>=2.0.1) ; extra == "x"', Requirement("some-thing-else", "2.0.1", "x")),
        ('brand-data[train,audio]; extra == "dev"', Requirement("brand-data", "", "dev")),
        ("click", Requirement("click", "", "")),
        ("", None),
    ],
)
def test_a_line_of_metadata_is_a_requirement(line: str, expected: Requirement | None) -> None:
    """Its name as pip compares it, its oldest version, and its extra."""
    assert parse(line) == expected


@pytest.mark.parametrize(
    ("version", "least", "right"),
    [
        ("2.13.0+cpu", "2.3", True),
        ("2.3", "2.3.0", True),
        ("2.3.0", "2.3", True),
        ("2.2.2", "2.3", False),
        ("10.4", "9", True),
        ("10.0", "10", True),
        ("1.26.4", "", True),
        ("unknown", "1", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, least: str, *, right: bool) -> None:
    """Not as text."""
    assert at_least(version, least) is right


def test_all_is_there() -> None:
    """One finding for Brand's own packages and one for each extra of users, each with its versions."""
    found = findings(THERE)
    assert list(found) == ["core", "train", "audio"]
    assert {each.state for each in found.values()} == {"ok"}
    assert found["train"].told == "torch 2.13.0+cpu, simplejpeg 1.9.0"


def test_a_missing_extra_is_no_problem() -> None:
    """It says what it is for, and how to install it."""
    found = findings(without("soundfile"))["audio"]
    assert found.state == "missing"
    assert found.told == "soundfile is not installed: decoding audio"
    assert found.cure == "pip install 'brand-data[audio]'"
    assert findings(without("torch", "simplejpeg"))["train"].told.startswith("torch and simplejpeg are not installed")


def test_a_missing_package_of_brand_itself_is_a_problem() -> None:
    """Without it nothing works."""
    found = findings(without("pillow"))["core"]
    assert (found.state, found.cure) == ("problem", "pip install 'brand-data'")


def test_a_package_that_is_too_old_is_a_problem() -> None:
    """The command upgrades it."""
    found = findings(THERE | {"torch": "2.2.2"})["train"]
    assert found.state == "problem"
    assert found.told == "torch 2.2.2 is older than 2.3"
    assert found.cure == "pip install --upgrade 'torch>=2.3'"


def test_a_package_that_does_not_import_is_a_problem() -> None:
    """The error of the import is told."""
    found = findings(THERE, {"torch": "OSError: libcudart.so.13: cannot open shared object file"})["train"]
    assert found.state == "problem"
    assert "torch 2.13.0+cpu is installed but cannot be imported: OSError: libcudart.so.13" in found.told
    assert found.cure == "pip install --force-reinstall 'torch>=2.3'"


def test_an_extra_that_nobody_described_is_shown() -> None:
    """After the others, with its command."""
    found = list(judge([*NEEDED, Requirement("lance", "2.9", "new")], THERE, {}))
    assert [each.name for each in found] == ["core", "train", "audio", "new"]
    assert found[-1].told == "lance is not installed"
    assert found[-1].cure == "pip install 'brand-data[new]'"


def test_every_extra_of_the_distribution_has_a_purpose(repository: Path) -> None:
    """So `brand doctor` says what is missing for what."""
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) - DEVELOPERS <= set(PURPOSES)


def test_imports_that_fail_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error, a crash, a print, and modules that are right before, between and after them."""
    (tmp_path / "told_error.py").write_text("raise OSError('libfoo.so: cannot open\\nsecond line')")
    (tmp_path / "told_crash.py").write_text("import os; os._exit(7)")
    (tmp_path / "told_print.py").write_text("print('welcome'); import warnings; warnings.warn('old')")
    monkeypatch.syspath_prepend(tmp_path)
    names = ["json", "told_error", "told_print", "told_crash", "base64"]
    monkeypatch.setattr(packages, "MODULES", {name: name for name in names})
    steps: list[tuple[int, int]] = []
    assert import_faults(names, lambda done, total: steps.append((done, total))) == {
        "told_error": "OSError: libfoo.so: cannot open",
        "told_crash": "its import ended the process, with code 7",
    }
    assert steps == [(4, 5), (5, 5)]


@pytest.mark.slow
def test_an_import_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is told."""
    (tmp_path / "told_never.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packages, "MODULES", {"told_never": "told_never"})
    found = import_faults(["told_never"], lambda *_: None, limit_s=1)
    assert found == {"told_never": "it did not load within 1 second"}


def test_without_metadata_the_extras_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brand that is imported from a folder works, and is not installed."""
    monkeypatch.setattr(packages, "DISTRIBUTION", "brand-data-of-nobody")
    (found,) = check_packages(lambda *_: None)
    assert (found.state, found.cure) == ("missing", "pip install brand-data-of-nobody")
