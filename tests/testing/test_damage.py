"""The tool that damages data sets: what it does has a meaning, a seed repeats it, and all of it is told."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import LIMIT_S
from tests.tools.damage import KINDS, any_damage, read_files, write_files

FILES = {
    "brand.json": b'{"a": 1,\n  "b": [2, 3]}\n' + b" " * 2000,
    "index/a.npy": bytes(range(256)) * 8,
    "b": b"x" * 700,
    "empty": b"",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_damage_changes_something_that_has_a_meaning(kind: str) -> None:
    """Other bytes, of the same files; a JSON document says something else, or nothing."""
    for seed in range(300):
        damage = any_damage(FILES, random.Random(seed), kind)
        assert damage == any_damage(FILES, random.Random(seed), kind)
        assert damage.kind == kind
        changed = {name for name, data in damage.files.items() if data != FILES[name]}
        assert changed
        assert changed <= set(FILES) - {"empty"}
        if changed == {"brand.json"}:
            assert b"".join(damage.files["brand.json"].split()) != b"".join(FILES["brand.json"].split())


@pytest.mark.parametrize("in_place", [False, True])
def test_a_folder_is_damaged_and_mended(tmp_path: Path, *, in_place: bool) -> None:
    """By new files, or in those that are there."""
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    for seed in range(30):
        damage = any_damage(FILES, random.Random(seed))
        name = next(iter(damage.files))
        with (tmp_path / name).open("rb") as held:
            damage.apply(tmp_path, in_place=in_place)
            assert read_files(tmp_path) == {**FILES, **damage.files}
            assert os.path.samestat(os.fstat(held.fileno()), (tmp_path / name).stat()) == in_place
            assert held.read() == (damage.files[name] if in_place else FILES[name])
        write_files(tmp_path, {name: FILES[name] for name in damage.files}, in_place=in_place)
        assert read_files(tmp_path) == FILES


@pytest.mark.slow
def test_nothing_that_storage_does_is_ever_delivered(tmp_path: Path) -> None:
    """120 damages of all kinds: `verify` tells each, no read or draw gives a wrong sample, no process ends."""
    command = [sys.executable, "-m", "tests.tools.integrity", "--trials", "120", "--seed", "7", "--jobs", "2"]
    command += ["--work", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "most memory" in done.stdout
