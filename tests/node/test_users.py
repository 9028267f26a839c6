"""Whose are data and folders? Another user, root on a file system that squashes root, a read-only home, a move."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import brand
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.node.test_sandboxes import train
from tests.sandbox import as_nobody, environment, needs_namespaces
from tests.support import LIMIT_S

SAMPLES = 1200
READ_ONLY_HOME = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o ro tmpfs "$HOME" && exec "$@"', "sh")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users see, with a data set of this one; they can write beside it, and not in `ours`."""
    folder = Path(tempfile.mkdtemp(prefix="brand-test-", dir="/tmp"))
    folder.chmod(0o777)
    brand.pack([{"number": n} for n in range(SAMPLES)], folder / "set.brand", {"number": "int"}, chunk_size=32, jobs=1)
    (folder / "ours").mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=[False, True], ids=["another user", "squashed root"])
def somebody(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return as_nobody(squashed=request.param)


@pytest.mark.slow
def test_a_data_set_of_somebody_else(shared: Path, somebody: tuple[str, ...]) -> None:
    """Both train from it at the same time, each with a server of their own, in one order; also with `common`."""
    server = "own" if "-r" in somebody else "common"
    folders = [shared / str(number) for number in range(2)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        mine = pool.submit(train, (), shared / "set.brand", folders[0], server=server)
        theirs = pool.submit(train, somebody, shared / "set.brand", folders[1], server=server)
    assert theirs.result()["found"] == mine.result()["found"]
    assert sorted(mine.result()["found"]) == sorted(2 * list(range(SAMPLES)))
    assert not theirs.result()["problems"]


USES = """
import json, sys
from pathlib import Path
import brand

at = Path(sys.argv[1])
pack = lambda path: brand.pack([{"number": 1}], path, {"number": "int"}, jobs=1)
train = lambda **given: [None for _ in brand.BrandLoader(brand.BrandDataset(at / "set.brand", memory=0.5, **given), 50)]
uses = {
    "pack there": lambda: pack(at / "ours" / "new.brand"),
    "pack here": lambda: pack(at / "theirs.brand"),
    "read it": lambda: brand.open(at / "theirs.brand").sample(0),
    "cache": lambda: train(cache=at / "ours"),
    "closed chunk": lambda: train(server="none"),
}
told = {}
for name, use in uses.items():
    try:
        use()
        told[name] = "worked"
    except Exception as error:
        told[name] = f"{type(error).__name__}: {error}"
print(json.dumps(told))
"""


@pytest.mark.slow
def test_what_somebody_else_may_not_do(shared: Path, somebody: tuple[str, ...]) -> None:
    """One sentence names the folder or file, and the cure."""
    chunk = sorted((shared / "set.brand" / "chunks").iterdir())[3]
    chunk.chmod(0o600)
    done = subprocess.run(
        [*somebody, sys.executable, "-c", USES, str(shared)],
        env=environment() | {"HOME": "/root"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told, ours = json.loads(done.stdout), shared / "ours"
    assert told["pack there"] == f"StorageError: cannot write the data set to {ours / 'new.brand'}: permission denied"
    assert told["pack here"] == told["read it"] == "worked", told
    assert told["cache"].startswith("CacheError: ")
    assert str(ours) in told["cache"]
    assert told["cache"].endswith(("permission denied; give another one", "give a folder of your own"))
    assert told["closed chunk"].startswith(f"UnreadableError: {chunk}, chunk 3, sample ")
    assert (
        "cannot be read: Permission denied. Let this user read it: its owner runs `chmod -R a+rX FOLDER`"
        in told["closed chunk"]
    )


@pytest.mark.slow
def test_a_read_only_home(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training needs no file there."""
    needs_namespaces()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert train(READ_ONLY_HOME, texts, tmp_path)["found"] == train((), texts, tmp_path)["found"]


@pytest.mark.parametrize("server", [None, "none"])
def test_a_data_set_that_is_moved(texts: Path, tmp_path: Path, server: str | None) -> None:
    """A state continues at the new place. Where it was, a training ends with an error that names the file."""
    path = shutil.copytree(texts, tmp_path / "before.brand")

    def loader(at: Path) -> BrandLoader:
        data: Any = BrandDataset(at, fields=("number",), memory=0.1, server=server)
        return BrandLoader(data, 50, sampler=BrandSampler(data, seed=4))

    whole = [batch[0].tolist() for batch in loader(texts)]
    first = loader(path)
    batches = iter(first)
    found, state = [next(batches)[0].tolist() for _ in range(3)], first.state_dict()
    moved = path.rename(tmp_path / "after.brand")
    again = loader(moved)
    again.load_state_dict(state)
    assert found + [batch[0].tolist() for batch in again] == whole
    with pytest.raises(
        brand.BrandError, match=r"before\.brand.*is missing\. Its folder is gone: if the data set was moved, open it at"
    ):
        found.extend(batch[0].tolist() for batch in batches)
    assert found == whole[: len(found)]
