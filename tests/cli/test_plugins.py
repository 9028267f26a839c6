"""Plug-ins of Pillow: a file that only one reads is refused with its name, and read with `--plugin`."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from brand import BrandDataset, DecodeImage
from brand.errors import DecodeError
from brand.formats.media import kind_of, misfit
from tests.formats.test_heads import CASES
from tests.support import LIMIT_S, brand_process, running_brand
from tests.tools.toy_heif import toy

FILE = toy(bytes(range(12)), 4)
JXL = b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(100)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a HEIC file, and a tar with one."""
    (tmp_path / "src" / "a").mkdir(parents=True)
    (tmp_path / "src" / "a" / "phone.heic").write_bytes(FILE)
    (tmp_path / "src" / "a" / "plain.jpg").write_bytes(CASES["plain jpeg"][0])
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("0.jpg")
        info.size = len(FILE)
        tar.addfile(info, io.BytesIO(FILE))
    return tmp_path


SAYS = (
    "it is HEIF, which Pillow reads only with the plug-in pillow_heif: pip install pillow-heif, then --plugin"
    " pillow_heif"
)


@pytest.mark.parametrize("args", [("images", "src"), ("webdataset", "x.tar")])
def test_a_file_that_needs_a_plug_in_names_it(source: Path, args: tuple[str, str]) -> None:
    """The file, the plug-in, and how to get it; skipping leaves only that file out."""
    kind, name = args
    outcome = brand_process("convert", kind, source / name, source / "set.brand", "-j", 1)
    assert outcome.code != 0
    assert SAYS in outcome.err
    if kind == "images":
        assert "a/phone.heic" in outcome.err
        outcome = brand_process("convert", kind, source / name, source / "set.brand", "-j", 1, "--on-error", "skip")
        assert outcome.code == 0
        assert "a/phone.heic" in (source / "set.brand" / "skipped.tsv").read_text()
        assert len(BrandDataset(source / "set.brand")) == 1


@pytest.mark.parametrize("args", [("images", "src"), ("webdataset", "x.tar")])
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_plug_in_that_is_named_reads_it(source: Path, args: tuple[str, str], jobs: int) -> None:
    """In all processes of the conversion, also to decode every file."""
    kind, name = args
    more = ("--validate",) if kind == "images" else ()
    plugin = ("--plugin", "tests.tools.toy_heif")
    outcome = brand_process("convert", kind, source / name, source / "set.brand", "-j", jobs, *plugin, *more)
    assert outcome.code == 0, outcome.err
    field = "image" if kind == "images" else "jpg"
    data = BrandDataset(source / "set.brand", decode=False)
    assert data[0][field if field in data.schema else "image"] == FILE


def test_training_without_the_plug_in_says_so(source: Path) -> None:
    """With the sample, and the plug-in; with it, pixels come."""
    plugin = ("--plugin", "tests.tools.toy_heif")
    assert brand_process("convert", "images", source / "src", source / "set.brand", "-j", 1, *plugin).code == 0
    data = BrandDataset(source / "set.brand", decode={"image": DecodeImage(mode="unchanged")})
    with pytest.raises(DecodeError, match="sample 0: Pillow cannot decode it: it is HEIF, which Pillow reads"):
        data[0]


def test_registered_plug_ins_decode(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process."""
    from PIL import Image

    from tests.tools.toy_heif import register_heif_opener

    for name in ("OPEN", "ID"):
        monkeypatch.setattr(Image, name, type(getattr(Image, name))(getattr(Image, name)))
    register_heif_opener()
    assert misfit("image", FILE) == ""
    assert np.array_equal(DecodeImage(mode="unchanged")(FILE), np.arange(12, dtype=np.uint8).reshape(3, 4))
    assert source.exists()


def test_a_plug_in_that_is_missing_names_its_package(source: Path) -> None:
    """The next step works: it is the name in the registry."""
    outcome = brand_process("convert", "images", source / "src", source / "set.brand", "--plugin", "pillow_jxl")
    assert outcome.code != 0
    assert "there is no plug-in pillow_jxl" in outcome.err
    assert "pip install pillow-jxl-plugin" in outcome.err
    assert not (source / "set.brand").exists()


@pytest.mark.parametrize(
    ("data", "kind"), [(FILE, "image/heif"), (JXL, "image/jxl"), (b"\xff\x0a" + bytes(90), "image/jxl")]
)
def test_kinds_that_need_a_plug_in_are_known(data: bytes, kind: str) -> None:
    """By their first bytes."""
    assert kind_of(data) == kind
    assert "plug-in pillow_" in misfit("image", data)
    assert misfit("audio", data).startswith("not an audio file")


@pytest.fixture
def phones(tmp_path: Path) -> Path:
    """A data set of 16 HEIC files."""
    (tmp_path / "src").mkdir()
    for number in range(16):
        (tmp_path / "src" / f"{number:02}.heic").write_bytes(toy(bytes(range(number, number + 12)), 4))
    plugin = ("--plugin", "tests.tools.toy_heif")
    assert brand_process("convert", "images", tmp_path / "src", tmp_path / "set.brand", *plugin).code == 0
    return tmp_path / "set.brand"


TRAINING = """
import sys
from torch.utils.data import DataLoader
from brand import BrandDataset, BrandLoader, BrandSampler, DecodeImage

def main(path, how, server):
    from tests.tools.toy_heif import register_heif_opener
    register_heif_opener()  # in this process alone
    decode = {"image": DecodeImage(mode="L", size=(3, 4))}
    given = {"fields": ("image",), "decode": decode, "server": server or None}
    data = BrandDataset(path, **given)
    if server == "common":  # it decodes from the second job on
        other = iter(BrandLoader(BrandDataset(path, job="other", **given), 4))
        next(other)
    if how == "BrandLoader":
        loader = BrandLoader(data, 4, sampler=BrandSampler(data))
    else:
        loader = DataLoader(data, 4, sampler=BrandSampler(data), num_workers=2, multiprocessing_context=how)
    print(sorted(int(image.min()) for (batch,) in loader for image in batch))
    print(data.stats()["decoding"]["decoded"] if server else 0)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def train(phones: Path, how: str, server: str = "") -> list[str]:
    """What a training prints: the smallest pixels, and how many samples its data server has decoded."""
    script = phones.parent / "training.py"
    script.write_text(TRAINING)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(phones), how, server]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["BrandLoader", "fork", "spawn", "forkserver"])
def test_workers_have_the_plug_ins_of_their_training(how: str, phones: Path) -> None:
    """Also those that are started, and import nothing that the script's main function imports."""
    assert train(phones, how) == [str(list(range(16))), "0"]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "decoded"), [(["--plugin", "tests.tools.toy_heif"], True), ([], False)])
def test_a_data_server_decodes_with_a_plug_in(options: list[str], decoded: bool, phones: Path) -> None:
    """With --plugin; without it, the clients decode these samples themselves, and the values are the same."""
    with running_brand("serve", phones, "--decoded-memory", "4MB", "--decode-workers", 1, *options) as server:
        assert server.stdout is not None
        address = server.stdout.readline().decode().strip()
        pixels, count = train(phones, "BrandLoader", address)
    assert pixels == str(list(range(16)))
    assert (int(count) > 0) == decoded


@pytest.mark.slow
def test_a_common_server_has_the_plug_ins_of_its_training(phones: Path) -> None:
    """The server that a training starts with server="common" decodes for its second job."""
    pixels, count = train(phones, "BrandLoader", "common")
    assert pixels == str(list(range(16)))
    assert int(count) > 0
