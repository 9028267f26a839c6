"""The process of a server that a training starts: what it says to the one that waits for it, and when nobody does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brand import pack
from brand.node.setup.server_spec import ServerSpec
from tests.support import LIMIT_S

pytestmark = pytest.mark.usefixtures("real_start")
_MAIN = "import brand.node.serve.process; brand.node.serve.process.main()"


def ended_process() -> int:
    """Number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(LIMIT_S)
    return process.pid


def start(said: bytes) -> str:
    """What a server writes to standard error until it ends, where the process that started it is gone already."""
    command = [sys.executable, "-W", "error", "-c", _MAIN]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None  # nobody reads what it says
        _, told = process.communicate(said, timeout=LIMIT_S)
    return told.decode()


@pytest.mark.slow
def test_a_server_whose_starter_is_gone_ends_without_a_word(tmp_path: Path) -> None:
    """Whether it could serve or not, and also where it was not told all that it should do."""
    pack([{"n": n} for n in range(8)], tmp_path / "set", {"n": "int"}, jobs=1)
    for path in (tmp_path / "set", tmp_path / "none"):
        spec = ServerSpec(str(path), f"unix:@brand-starter-{os.getpid()}", 1.0, (ended_process(),)).to_json().encode()
        assert start(spec) == ""
    assert start(spec[:20]) == ""
    assert start(b"") == ""
