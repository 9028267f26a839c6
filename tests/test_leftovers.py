"""What counts as left behind by a killed process, and what does not?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import Leftovers
from tests.support import LIMIT_S

_KILLED_IN_A_TRIAL = "import os, tempfile; os.unlink = lambda path: os.kill(os.getpid(), 9); tempfile.gettempdir()"


def test_python_tries_a_temporary_folder_with_a_file_that_is_not_ours(tmp_path: Path) -> None:
    """A process that is killed before Python removes it leaves that file."""
    left = Leftovers(tmp_path)
    command = [sys.executable, "-c", _KILLED_IN_A_TRIAL]
    done = subprocess.run(command, check=False, timeout=LIMIT_S, env=os.environ | left.environment)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    left.check()


@pytest.mark.parametrize(("name", "content"), [("abcd1234", b"samples"), ("brand-1", b""), ("abcd12345", b"blat")])
def test_other_files_are_left_behind(name: str, content: bytes, tmp_path: Path) -> None:
    """The name and the content have to be those of Python's file."""
    left = Leftovers(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AssertionError, match=name):
        left.check()
