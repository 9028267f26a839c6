"""A training with the helpers of the page, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import LIMIT_S

pytestmark = pytest.mark.frameworks
EXAMPLE = Path(__file__).parent / "example.py"


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "trainer"])
def test_it_goes_on_inside_an_epoch(numbers: Path, framework: str) -> None:
    """600 samples: 10 batches and 5 more before the stop, the rest after it, and each of them once an epoch."""
    command = [sys.executable, str(EXAMPLE), framework, str(numbers)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "920 samples before the stop, 280 after it\n" in done.stdout
    assert "different samples of each epoch: 600 600\n" in done.stdout
