"""What is released: sdist and wheel hold what they should, and the installed wheel runs away from the source."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import brand
from tests import release

ROOT = Path(__file__).resolve().parent.parent
OURS = {"dev", "docs"}
"""Extras for developers."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    return release.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def metadata(built: tuple[Path, Path]) -> Message:
    """The metadata of the wheel."""
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(wheel.read(name).decode())


@pytest.mark.release
@pytest.mark.slow
def test_the_wheel_holds_brand_and_nothing_else(built: tuple[Path, Path]) -> None:
    """`brand` is the only top-level package of the wheel, with every module, py.typed and the licence."""
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"brand"}
    files = [p for p in (ROOT / "brand").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.release
@pytest.mark.slow
def test_the_sdist_holds_what_the_wheel_is_made_of(built: tuple[Path, Path]) -> None:
    """The package, its description and its licence: no tests, no data, nothing of the machine."""
    with tarfile.open(built[0]) as sdist:
        members = sdist.getmembers()
    parts = {member.name.split("/", 2)[1] for member in members if "/" in member.name}
    wanted = {"brand", "brand_data.egg-info", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO"}
    assert parts == wanted | {"setup.cfg", "MANIFEST.in"}
    assert all(member.isfile() or member.isdir() for member in members)


@pytest.mark.release
@pytest.mark.slow
def test_the_metadata_says_what_users_look_for(metadata: Message) -> None:
    """The version, the licence, each Python that is tried, and each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Name"] == "brand-data"
    assert metadata["Version"] == brand.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == f">={release.PYTHONS[0]}"
    named = re.findall(r"^Programming Language :: Python :: (\d\.\d+)$", _classifiers(metadata), re.MULTILINE)
    assert tuple(named) == release.PYTHONS
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    assert str(metadata.get_payload()).startswith("# Brand")


def _classifiers(metadata: Message) -> str:
    return "\n".join(metadata.get_all("Classifier", []))


@pytest.mark.release
@pytest.mark.slow
def test_the_installed_wheel_runs_the_demo(built: tuple[Path, Path], tmp_path: Path) -> None:
    """In an environment that holds this wheel and borrows all other packages, away from the source."""
    release.run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    inside = tmp_path / "env" / "bin" / "python"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        inside,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    release.run(*pip, built[1])
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    assert Path(release.home_of(inside)) == site / "brand"
    told = release.demo(inside, tmp_path / "demo")
    assert "every checksum right" in told
    assert re.search(r"^test accuracy 0\.[6-9]\d+$", told, re.MULTILINE)
    assert re.search(r"^ +audio  audio/wav, ", told, re.MULTILINE)


@pytest.mark.release
@pytest.mark.slow
def test_the_wheel_without_extras_works_in_a_clean_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    """With what the registry has: the metadata names all that conversion, checks and exact reads need.

    `brand doctor` finds nothing broken, and names each extra that is missing with the command that installs it.
    """
    inside = release.environment(Path(sys.executable), tmp_path / "env", str(built[1]))
    release.run(inside, "-W", "error", "-m", "compileall", "-q", "-f", release.home_of(inside))
    brand_command = inside.parent / "brand"
    photos = ROOT / "examples" / "data" / "photos"
    release.run(brand_command, "convert", "images", photos, "photos.brand", cwd=tmp_path)
    assert "every checksum right" in release.run(brand_command, "verify", "photos.brand", cwd=tmp_path)
    told = release.run(inside, "-c", "import brand; print(brand.open('photos.brand').sample(10)['key'])", cwd=tmp_path)
    assert told.strip().endswith((".png", ".jpg", ".jpeg", ".webp"))
    examined = json.loads(release.run(brand_command, "doctor", "photos.brand", "--json", cwd=tmp_path))
    assert examined["problems"] == 0
    cures = {each["name"]: each.get("next") for each in examined["findings"] if each["state"] == "missing"}
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]) - OURS
    assert {name: cures.get(name) for name in extras} == {name: f"pip install 'brand-data[{name}]'" for name in extras}
    assert cures["load PyTorch"] == "pip install 'brand-data[train]'"


def test_an_interpreter_is_found_where_pyenv_keeps_it(tmp_path: Path) -> None:
    """A shim that fails is passed over, and so is a version that is no match."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / "shims").mkdir()
    shim = tmp_path / "shims" / f"python{version}"
    shim.write_text("#!/bin/sh\necho 'pyenv: not chosen' >&2\nexit 127\n")
    shim.chmod(0o755)
    kept = tmp_path / "versions" / f"{version}.99" / "bin"
    kept.mkdir(parents=True)
    (kept / "python").symlink_to(sys.executable)
    found = release.find_python(version, search=str(tmp_path / "shims"), pyenv=tmp_path)
    assert found == kept / "python"
    with pytest.raises(release.Unavailable, match=r"no python3\.999 in PATH"):
        release.find_python("3.999", search=str(tmp_path / "shims"), pyenv=tmp_path)


def test_a_combination_that_cannot_be_had_is_no_failure(tmp_path: Path) -> None:
    """It is told with its reason."""
    (outcome,) = release.check("3.999", "newest", tmp_path / "brand.whl")
    assert outcome.state == "unavailable"
    assert outcome.told.startswith("cannot be had here: no python3.999")


@pytest.mark.release
@pytest.mark.slow
def test_a_wheel_that_does_not_install_is_a_failure(tmp_path: Path) -> None:
    """The output of pip is told."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / "brand_data-0.0-py3-none-any.whl").write_bytes(b"no wheel")
    (outcome,) = release.check(version, "newest", tmp_path / "brand_data-0.0-py3-none-any.whl")
    assert outcome.state == "failed"
    assert "brand_data-0.0" in outcome.told


def test_a_command_that_fails_shows_what_it_printed() -> None:
    """Its output is in the error."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        release.run(sys.executable, "-c", "print('the reason'); raise SystemExit(3)")
    assert caught.value.returncode == 3
    assert "the reason" in caught.value.output
