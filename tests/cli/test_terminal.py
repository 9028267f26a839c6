"""On a terminal there is a bar, and binary data stays away from it; elsewhere there are plain lines."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from brand.cli.output import duration, meter, size
from tests.support import LIMIT_S


def on_terminal(*args: object) -> tuple[int, str]:
    """Exit code and all output of the command on a pseudo-terminal."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "-m", "brand", *map(str, args)], stdin=child, stdout=child, stderr=child, env=environment
    ) as process:
        os.close(child)
        seen = b""
        with contextlib.suppress(OSError):  # Linux says EIO when the other side is closed
            while data := os.read(parent, 65536):
                seen += data
        os.close(parent)
        code = process.wait(LIMIT_S)
    assert errno.EIO
    return code, seen.decode()


def plain(text: str) -> str:
    """Text without the terminal's control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.slow
def test_a_conversion_shows_a_bar_on_a_terminal(photos: Path, tmp_path: Path) -> None:
    """One line a stage, with counts, that ends at 100 %; the result follows."""
    code, seen = on_terminal("convert", "images", photos, tmp_path / "set", "-j", 2)
    assert code == 0
    assert "\x1b[" in seen
    told = plain(seen)
    for stage in ("scan", "pack"):
        assert re.search(rf"{stage}\s+[━╸╺ ]+\s*100 %\s+31 of 31", told), told
    assert "31 samples in 5 classes" in told
    assert "scan: 31" not in told


@pytest.mark.slow
def test_json_shows_no_bar_on_a_terminal(photos: Path, tmp_path: Path) -> None:
    """The document is all there is."""
    code, seen = on_terminal("convert", "images", photos, tmp_path / "set", "--json")
    assert code == 0
    assert seen.lstrip().startswith("{")
    assert "\x1b" not in seen


@pytest.mark.slow
def test_binary_data_is_not_written_to_a_terminal(photos_set: Path) -> None:
    """`brand cat --field image` says how to keep it instead."""
    code, seen = on_terminal("cat", photos_set, 0, "--field", "image")
    assert code == 2
    assert "not for a terminal" in plain(seen)
    assert "> FILE" in plain(seen)
    assert "PNG\r" not in seen


@pytest.mark.slow
def test_text_is_written_to_a_terminal(photos_set: Path) -> None:
    """Only bytes are held back."""
    code, seen = on_terminal("cat", photos_set, 0, "--field", "key")
    assert (code, seen.strip()) == (0, "animals/armadillo.png")


@pytest.mark.slow
def test_errors_end_the_bar_and_stand_below_it(photos: Path, tmp_path: Path) -> None:
    """The cursor is shown again and the message is a line of its own."""
    source = tmp_path / "src" / "a"
    source.mkdir(parents=True)
    (source / "1.png").write_text("no picture")
    code, seen = on_terminal("convert", "images", tmp_path / "src", tmp_path / "set", "-j", 1)
    assert code == 1
    assert seen.rfind("\x1b[?25h") >= seen.rfind("\x1b[?25l")
    assert any(line.startswith("brand: a/1.png: ") for line in plain(seen).replace("\r", "\n").splitlines())


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e9, "2.0 GB"), (3.25e12, "3.2 TB")],
)
def test_sizes_are_for_people(count: float, text: str) -> None:
    """Powers of 1,000."""
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3599.6, "1 h 00 min"),
        (7260, "2 h 01 min"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    """Seconds, minutes, hours; never "60.0 s" or "60 min"."""
    assert duration(seconds) == text


def test_lines_come_every_ten_seconds_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Off a terminal, a log of hours stays short; each stage ends with one line."""
    now = [0.0]
    monkeypatch.setattr("brand.cli.output.time.monotonic", lambda: now[0])
    with meter(quiet=False) as show:
        for second in range(31):
            now[0] = float(second)
            show("pack", second * 10, 300, second * 1000, 300_000)
        show("pack", 300, 300, 30_000, 300_000)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "pack: 100 of 300 (33 %)",
        "pack: 200 of 300 (67 %)",
        "pack: 300 of 300 (100 %)",
    ]
    assert "1.0 kB/s" in lines[0]


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` shows no progress."""
    with meter(quiet=True) as show:
        show("pack", 300, 300, 1, 1)
    assert capsys.readouterr().err == ""
