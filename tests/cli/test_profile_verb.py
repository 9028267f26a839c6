"""`brand profile`: what it prints, stores and draws, and what it says where it cannot measure."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brand.storage.io.device import IN_MEMORY, device_name, mount_of
from brand.storage.profile import probe
from brand.storage.profile.probe import Measurement, Report
from brand.storage.profile.profile import Profile, best_depth, load_profile, stripe_bytes
from brand.storage.profile.ranges import rounds
from tests.cli.test_terminal import on_terminal, plain
from tests.support import brand

KIB = 1024
SIZES = tuple(KIB << power for power in range(5, 11))
TABLE = (
    (100e6, 200e6, 350e6, 500e6, 600e6, 700e6),
    (400e6, 700e6, 1000e6, 1200e6, 1250e6, 1250e6),
    (500e6, 900e6, 1200e6, 1250e6, 1250e6, 0.0),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def known(cache: Path, photos_set: Path, monkeypatch: pytest.MonkeyPatch) -> Measurement:
    """What a measurement finds here, without one."""
    found = Profile(device_name(mount_of(photos_set)), SIZES, (1, 4, 16), TABLE, 1250e6)
    measured = Measurement(found, seconds=9.5, read_bytes=3_000_000, reads=42, file_bytes=1_000_000, cached_bytes=0)

    def take(_: Path, *, seconds: float, report: Report) -> Measurement:
        report(seconds / 2, seconds, 1_500_000)
        report(9.5, 9.5, 3_000_000)
        return measured

    monkeypatch.setattr("brand.cli.profile.take_measurement", take)
    return measured


@pytest.mark.usefixtures("known")
def test_it_shows_table_curve_and_what_follows(photos_set: Path) -> None:
    """A dash where nothing was measured, bars across the line, and the stripe of this data set."""
    told = brand("profile", photos_set)
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert "read size     1       4      16" in lines[1]
    assert lines[2].split() == ["32", "KiB", "100", "400", "500"]
    assert lines[7].split() == ["1", "MiB", "700", "1,250", "-"]
    assert "With 16 in flight; the line is 90 % of sequential, 1,125 MB/s" in told.out
    bars = [line for line in lines if "█" in line]
    assert len(bars) == 5
    assert {line.index("│") for line in bars} == {bars[0].index("│")}
    assert ["│█" in line for line in bars] == [False, False, True, True, True]
    assert "Sequential 1,250 MB/s; 90 % of it from reads of 108 KiB with 16 in flight" in told.out
    assert "(mean sample 25.3 kB): stripes of 2 samples (a quarter of a chunk is the most)" in told.out
    assert "read 3.0 times over" in told.out
    assert "left out" not in told.out
    assert "second: 10 of 10 (100 %)" in told.err


def test_it_is_stored_for_the_runtime(photos_set: Path, known: Measurement, cache: Path) -> None:
    """The file is named, and what is loaded for that data set is what was measured."""
    told = brand("profile", photos_set)
    (file,) = cache.rglob("*.json")
    assert f"Stored for {known.profile.device} in {file}" in told.out
    assert load_profile(photos_set) == known.profile


def test_a_dry_run_stores_nothing(photos_set: Path, known: Measurement, cache: Path) -> None:
    """And says so."""
    assert "Nothing was stored (--dry-run)" in brand("profile", photos_set, "--dry-run").out
    assert brand("profile", photos_set, "--dry-run", "--json").json["stored"] is None
    assert not cache.exists()


def test_as_json_all_is_one_document(photos_set: Path, known: Measurement, cache: Path) -> None:
    """The profile, what follows from it, and where it is stored."""
    told = brand("profile", photos_set, "--json")
    assert told.err == ""
    facts = told.json
    assert Profile.from_json(facts) == known.profile
    assert facts["best_depth"] == best_depth(known.profile) == 16
    assert facts["stripe_bytes"] == stripe_bytes(known.profile)
    assert facts["stripe_length"] == 2
    assert facts["path"] == str(photos_set)
    assert json.loads(Path(facts["stored"]).read_text())["device"] == facts["device"]


@pytest.mark.usefixtures("known")
def test_a_folder_that_is_no_data_set_has_no_stripe(photos: Path) -> None:
    """The rest is the same."""
    told = brand("profile", photos)
    assert told.code == 0
    assert "Data set" not in told.out
    assert "Sequential 1,250 MB/s" in told.out
    assert brand("profile", photos, "--json").json["stripe_length"] is None


def test_what_the_page_cache_kept_is_told(
    photos_set: Path, known: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were read once are no news."""
    other = replace(known, file_bytes=4_000_000, cached_bytes=12_345)
    monkeypatch.setattr("brand.cli.profile.take_measurement", lambda *_, **__: other)
    told = brand("profile", photos_set).out
    assert "12.3 kB were left out: the page cache did not let go of them" in told
    assert "times over" not in told


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_curves_are_drawn(photos_set: Path, tmp_path: Path) -> None:
    """As a picture of the kind that the name asks for."""
    pytest.importorskip("matplotlib")
    told = brand("profile", photos_set, "--plot", tmp_path / "curves.png")
    assert told.code == 0, told.err
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert f"The curves are plotted in {tmp_path / 'curves.png'}" in told.out


@pytest.mark.usefixtures("known")
def test_without_matplotlib_it_says_what_to_install(photos_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it measures."""
    real = importlib.import_module

    def without(name: str, *more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    told = brand("profile", photos_set, "--plot", "curves.png")
    assert (told.code, told.out) == (1, "")
    assert "pip install 'brand-data[tools]'" in told.err


@pytest.mark.parametrize("name", ["curves", "curves.txt", "nowhere/curves.png"])
def test_a_drawing_that_cannot_be_made_is_wrong_use(name: str, photos_set: Path, tmp_path: Path) -> None:
    """Before it measures."""
    told = brand("profile", photos_set, "--plot", tmp_path / name)
    assert (told.code, told.out) == (2, "")
    assert str(tmp_path / name) in told.err


def test_a_cache_folder_that_cannot_be_written(photos_set: Path, known: Measurement, cache: Path) -> None:
    """The result is shown, and then the error."""
    cache.write_text("")
    told = brand("profile", photos_set)
    assert told.code == 1
    assert "Sequential 1,250 MB/s" in told.out
    assert f"cannot write {cache}" in told.err


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    """The message names it; as JSON too."""
    told = brand("profile", tmp_path / "nowhere")
    assert (told.code, told.out) == (1, "")
    assert str(tmp_path / "nowhere") in told.err
    assert brand("profile", tmp_path / "nowhere", "--json").json["error"]["type"] == "StorageError"


def test_too_little_to_measure(photos_set: Path) -> None:
    """Wrong use, and what is needed."""
    told = brand("profile", photos_set)
    assert (told.code, told.out) == (2, "")
    assert "too small to measure a storage: 64 MiB" in told.err


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_time_is_at_least_a_second(seconds: str, photos_set: Path) -> None:
    """Everything else is wrong use."""
    told = brand("profile", photos_set, "--seconds", seconds)
    assert told.code == 2
    assert "--seconds" in told.err


def test_help_names_the_options() -> None:
    """Those of the documentation."""
    told = brand("profile", "--help").out
    assert all(option in told for option in ("--seconds", "--plot", "--dry-run", "--json", "PATH"))


@pytest.mark.slow
def test_a_real_measurement(photos_set: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the files to the stored profile, with small reads."""
    if mount_of(tmp_path).type in IN_MEMORY:
        pytest.skip("the temporary folder lies in memory")
    monkeypatch.setattr(probe, "SIZES", (4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB))
    monkeypatch.setattr(probe, "LEAST_BYTES", 500_000)
    monkeypatch.setattr(probe, "LARGE", 32 * KIB)
    monkeypatch.setattr(probe, "rounds", lambda cells: rounds(cells, 2))
    told = brand("profile", photos_set, "--seconds", 60)
    assert told.code == 0, told.err
    assert "stripes of" in told.out
    stored = load_profile(photos_set)
    assert stored is not None
    assert stored.sizes == (4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB)


@pytest.mark.slow
def test_on_a_terminal_errors_are_lines_of_their_own(tmp_path: Path) -> None:
    """No half bar before them."""
    code, seen = on_terminal("profile", tmp_path / "nowhere")
    assert code == 1
    assert plain(seen).strip().startswith("brand: ")
