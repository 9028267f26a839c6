"""README's lines run in containers as they should, and `brand doctor` says the truth of each of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from brand.errors import size
from tests.containers.container import ROOT, needs_root, run
from tests.containers.table import REHEARSALS, Rehearsal, table
from tests.rounds import Chance, rounds
from tests.support import LIMIT_S

STEPS = ("brand_loader", "data_loader", "resume", "direct", "cached")
HARMLESS = {"storage speed", "page cache", "direct reads", "compiled"}
"""Checks that depend on the file system of this machine, and that only tell how fast reads are."""
TRAINING = (sys.executable, "-m", "tests.containers.training")
DOCTOR = (sys.executable, "-m", "brand", "doctor", "photos.brand", "--json")


@pytest.fixture(scope="module")
def photos_here(photos_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data set, which every user may enter."""
    folder = tmp_path_factory.mktemp("here")
    shutil.copytree(photos_set, folder / "photos.brand")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def plain(photos_here: Path) -> dict[str, Any]:
    """What the training delivers outside of containers."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)}  # of the modules of the tests
    done = subprocess.run(
        TRAINING, cwd=photos_here, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert [step for step in STEPS if "error" in found[step]] == []
    assert found["brand_loader"] == found["data_loader"]
    return found


@pytest.mark.slow
@rounds(2)
def test_a_rehearsal(chance: Chance, photos_here: Path, plain: dict[str, Any], tmp_path: Path) -> None:
    """`--rounds 11` rehearses all environments; a round has one of them."""
    needs_root()
    name = list(REHEARSALS)[chance.number % len(REHEARSALS)]
    rehearsal = REHEARSALS[name]
    shutil.copytree(photos_here, tmp_path / "data")
    (tmp_path / "cache").mkdir()
    cache = ("/inside/cache",) if rehearsal.spec.cache_mode else ()
    trained = run(rehearsal.spec, tmp_path / "data", tmp_path / "cache", *TRAINING, *cache)
    found = json.loads(trained.stdout)
    examined = run(rehearsal.spec, tmp_path / "data", tmp_path / "cache", *DOCTOR)
    check_training(rehearsal, found, plain)
    check_doctor(rehearsal, examined)
    if examined.stdout:
        check_agreement(rehearsal, found, {each["name"]: each for each in json.loads(examined.stdout)["findings"]})
    if not rehearsal.refused:
        assert "Traceback" not in trained.stderr


def check_training(rehearsal: Rehearsal, found: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    """Each step delivers the samples of the plain run in its order, or fails as expected."""
    for step in STEPS:
        if step in rehearsal.refused:
            assert rehearsal.refused[step] in found[step]["error"]
        elif step in found or "brand_loader" not in rehearsal.refused:
            assert found[step] == plain[step]
    assert not found["problems"]
    assert found["facts"]["process 1"]


def check_doctor(rehearsal: Rehearsal, examined: subprocess.CompletedProcess[str]) -> None:
    """The exit code is as documented, and each fault is named; nothing else is."""
    assert examined.returncode == int(rehearsal.broken), examined.stdout + examined.stderr
    if not examined.stdout:
        assert rehearsal.refused["brand_loader"] in examined.stderr
        return
    told = json.loads(examined.stdout)
    found = {each["name"] for each in told["findings"] if each["part"] != "installed" or each["name"] == "train"}
    named = {each["name"]: each for each in told["findings"] if each["state"] != "ok" and each["name"] in found}
    assert set(rehearsal.named) <= set(named)
    assert rehearsal.broken or set(named) <= set(rehearsal.named) | HARMLESS
    assert bool(told["problems"]) == rehearsal.broken


def check_agreement(rehearsal: Rehearsal, found: Mapping[str, Any], told: Mapping[str, Mapping[str, Any]]) -> None:
    """What `brand doctor` says is what the training then met, whatever was expected."""

    def is_ok(name: str) -> bool:
        return bool(told[name]["state"] == "ok") if name in told else False

    for name, works in found["facts"].items():
        if name in told:
            assert is_ok(name) == works, name
    trains = "error" not in found["brand_loader"]
    if trains:
        assert is_ok("an epoch")
        assert is_ok("DataLoader") == is_ok("/dev/shm") == ("error" not in found["data_loader"])
    else:
        assert any(each["state"] == "problem" for each in told.values())
    if rehearsal.spec.memory:
        assert told["memory"]["told"].startswith(f"the control group may use {size(rehearsal.spec.memory)};")
    if rehearsal.spec.files:
        assert told["open files"]["told"] == f"{rehearsal.spec.files:,} for a process"
    small = "67.1 MB, so workers of a DataLoader send batches of a BrandDataset through memory of their own"
    if rehearsal.spec.shm == "size=64m":
        assert told["/dev/shm"]["told"].startswith(small)


def test_the_table_of_the_page(repository: Path) -> None:
    """`python -m tests.containers.table` prints it."""
    page = (repository / "docs/reference/limits.md").read_text()
    (found,) = re.findall(r"<!-- rehearsals -->\n\n(.*?)\n<!-- end of rehearsals -->", page, re.DOTALL)
    assert found == table()
