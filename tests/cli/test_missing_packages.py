"""Without a package that all of Brand needs, the command says which it is and how to install it, whatever the verb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support import LIMIT_S

pytestmark = pytest.mark.slow


def told(folder: Path, *args: str) -> tuple[int, str]:
    """Exit code and errors of the command, where the packages are those in a folder."""
    path = json.dumps([str(ROOT), str(folder)])
    code = f"import sys; sys.path[1:1] = {path}; import runpy; runpy.run_module('brand', run_name='__main__')"
    command = [sys.executable, "-S", "-P", "-c", code, *args]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment)
    return done.returncode, done.stderr


def packages_without(folder: Path, *names: str) -> Path:
    """A folder of links to all installed packages but these."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.name.partition("-")[0].removesuffix(".libs") not in names:
            (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize(
    ("missing", "verb", "says"),
    [
        (("click",), "doctor", "click is not installed"),
        (("numpy",), "doctor", "numpy is not installed"),
        (("xxhash",), "info", "xxhash is not installed"),
        (("numpy", "click"), "doctor", "numpy and click are not installed"),
        (("rich",), "doctor", "rich is not installed"),
    ],
)
def test_what_is_missing_is_named_with_the_command(
    missing: tuple[str, ...], verb: str, says: str, tmp_path: Path
) -> None:
    """In place of a traceback; all that is missing at once."""
    code, err = told(packages_without(tmp_path, *missing), verb, *(["x.brand"] if verb == "info" else []))
    assert code == 1
    assert err.splitlines()[-2:] == [says, "  pip install 'brand-data'"]
    assert "Traceback" not in err


def test_what_cannot_be_imported_is_named_with_the_reason(tmp_path: Path) -> None:
    """It is installed, and a library below it is not there."""
    folder = packages_without(tmp_path, "zstandard")
    (folder / "zstandard.py").write_text("raise ImportError('libzstd.so.1: cannot open shared object file')")
    info = next(Path(sysconfig.get_path("purelib")).glob("zstandard-*.dist-info"))
    (folder / info.name).symlink_to(info)
    code, err = told(folder, "doctor")
    assert code == 1
    assert "is installed but cannot be imported: ImportError: libzstd.so.1: cannot open" in err
    assert "  pip install --force-reinstall 'zstandard>=" in err


@pytest.mark.parametrize(("module", "verb"), [("brand.cli.output", "doctor"), ("brand.cli.show", "cat")])
def test_other_errors_of_imports_keep_their_traceback(module: str, verb: str) -> None:
    """They are nothing that pip can mend: in what every verb needs, and in the verb that runs."""
    code = f"import sys; sys.modules['{module}'] = None; from brand.__main__ import main; main()"
    command = [sys.executable, "-c", code, verb]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=ROOT)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert module in done.stderr


def test_a_verb_that_is_broken_stops_no_other() -> None:
    """The command imports the verb that it runs, and no other."""
    code = "import sys; sys.modules['brand.cli.upkeep'] = None; from brand.__main__ import main; main()"
    command = [sys.executable, "-c", code, "info", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
