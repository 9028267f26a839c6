"""Where Ray is not installed, the message says how to install it, and nothing else needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import LIMIT_S


@pytest.mark.slow
def test_without_ray_the_message_says_how_to_install_it(photos: Path, tmp_path: Path) -> None:
    """Before the source is listed."""
    code = "import sys; sys.modules['ray'] = None; from brand.cli.main import main; main()"
    told = subprocess.run(
        [sys.executable, "-c", code, "convert", "images", str(photos), str(tmp_path / "set"), "--engine", "ray"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert told.returncode == 1
    assert "pip install 'brand-data[ray]'" in told.stderr
    assert not (tmp_path / "set").exists()
