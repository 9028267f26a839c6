"""The Dockerfile: it is given what it copies and nothing else, asks for what is there, and its user is not root."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import brand

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Name and arguments of each instruction of the Dockerfile; lines that go on are joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def ignored(name: str) -> bool:
    """Whether .dockerignore keeps a name at the root out of the build: the last line that matches decides."""
    result = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#") and fnmatch(name, line.removeprefix("!")):
            result = not line.startswith("!")
    return result


def test_the_build_is_given_what_the_wheel_is_made_of(instructions: list[tuple[str, str]]) -> None:
    """Each source of COPY is there and not ignored, and these are all that reach the build."""
    copied = {
        source
        for name, rest in instructions
        if name == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    }
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "brand"}
    assert {path.name for path in ROOT.iterdir() if not ignored(path.name)} == copied


def test_the_user_is_not_root(instructions: list[tuple[str, str]]) -> None:
    """The last USER is a number above 0, and only files are added after it."""
    names = [name for name, _ in instructions]
    last = len(names) - 1 - names[::-1].index("USER")
    assert int(instructions[last][1].split(":")[0]) > 0
    assert all("apt-get" not in rest and "pip" not in rest for _, rest in instructions[last:])


def test_the_image_is_checked_by_doctor(instructions: list[tuple[str, str]]) -> None:
    """`brand doctor` runs as the image's user: an image in which Brand does not work is not built."""
    assert instructions.index(("RUN", '["brand", "doctor"]')) > [name for name, _ in instructions].index("USER")


def test_its_extras_are_extras(instructions: list[tuple[str, str]]) -> None:
    """The default of EXTRAS names extras of the distribution, without those for developers."""
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    (extras,) = (rest.removeprefix("EXTRAS=") for name, rest in instructions if rest.startswith("EXTRAS="))
    assert set(extras.split(",")) <= known - {"dev", "docs"}


def test_its_head_tags_this_version() -> None:
    """The commands at the head make an image of this version."""
    tags = re.findall(r"-t brand:(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert tags
    assert set(tags) == {brand.__version__}


def test_nothing_comes_from_elsewhere(instructions: list[tuple[str, str]]) -> None:
    """No address, no download but those of apt-get and pip."""
    for _, rest in instructions:
        assert not re.search(r"https?://|\bcurl\b|\bwget\b|\bgit\b", rest)
