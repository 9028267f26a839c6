"""A hint of a message is followed here as it stands, and it helps: the command is run, the code is evaluated."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from torch.utils.data import DataLoader, Subset

import brand as library
from brand import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, PackedBatchSampler, pack
from brand.chunker import convert_images
from brand.errors import (
    CacheError,
    DecodeError,
    MissingExtraError,
    MissingFileError,
    NotADataSetError,
    SchemaError,
    ServerError,
    SourceError,
    UnreadableError,
    UsageError,
    pack_error,
    unpack_error,
)
from brand.formats.audio import decode_audio, soundfile
from brand.formats.publish import remedy_for
from brand.formats.values import file_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.indexcopy import copy_index
from brand.stores.reasons import failed
from tests.buckets import bucket
from tests.chunker.test_import_faults import tar_of
from tests.chunker.test_importers import SOURCES
from tests.golden.inputs import png, wav
from tests.support import brand, options
from tests.tools.imagefiles import SELDOM, tiff


def tars(folder: Path) -> None:
    (folder / "x.tar").write_bytes(tar_of({"a.png": png(4, 9), "b.png": png(4, 200)}))


def parquets(folder: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2]}), folder / "x.parquet")


def json_lines(folder: Path) -> None:
    (folder / "x.jsonl").write_text('{"a": 1}\n{"a": 2}\n')


def tables(folder: Path) -> None:
    (folder / "x.csv").write_text("a,b\n1,2\n")


def tabbed(folder: Path) -> None:
    (folder / "x.tsv").write_text("a\tb\n1\t2\n")


def packed_lines(folder: Path) -> None:
    import gzip

    (folder / "x.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n'))


def pictures(folder: Path) -> None:
    (folder / "class").mkdir()
    (folder / "class" / "a.png").write_bytes(png(4, 9))


def sounds(folder: Path) -> None:
    (folder / "a.wav").write_bytes(wav(1))


def shards(folder: Path) -> None:
    shutil.copytree(SOURCES / "mds", folder, dirs_exist_ok=True)


def chunks(folder: Path) -> None:
    shutil.copytree(SOURCES / "litdata", folder, dirs_exist_ok=True)


def saved(folder: Path) -> None:
    shutil.copytree(SOURCES / "hf", folder, dirs_exist_ok=True)


FOLDERS: dict[str, Callable[[Path], None]] = {
    "images": pictures, "audio": sounds, "webdataset": tars, "parquet": parquets, "jsonl": json_lines, "csv": tables,
    "mds": shards, "litdata": chunks, "hf": saved,
}  # fmt: skip


@pytest.mark.parametrize("make", [*FOLDERS.values(), tabbed, packed_lines])
def test_the_command_for_a_folder_that_is_no_data_set(make: Callable[[Path], None], tmp_path: Path) -> None:
    """By the files that are in it."""
    source = tmp_path / "source"
    source.mkdir()
    make(source)
    with pytest.raises(NotADataSetError, match=r"there is no brand\.json in it") as failed:
        BrandDataset(source)
    found = re.search(r"`brand (convert \w+)` makes one", str(failed.value))
    assert found is not None, failed.value
    told = brand(*found[1].split(), source, tmp_path / "set")
    assert told.code == 0, told.err
    assert len(BrandDataset(tmp_path / "set"))


def test_the_commands_are_listed_for_a_folder_of_other_files(tmp_path: Path) -> None:
    """And for an empty one."""
    for name in ("", "x.dat"):
        if name:
            (tmp_path / name).write_bytes(b"x")
        with pytest.raises(NotADataSetError, match="`brand convert --help` lists the sources that it reads"):
            BrandDataset(tmp_path)
    told = brand("convert", "--help")
    assert told.code == 0
    assert all(kind in told.out for kind in FOLDERS)


@pytest.mark.parametrize("make", [tars, parquets, json_lines, tables, packed_lines])
def test_the_command_for_files_that_are_no_images(make: Callable[[Path], None], tmp_path: Path) -> None:
    """They are told apart by their endings."""
    source = tmp_path / "source"
    source.mkdir()
    make(source)
    with pytest.raises(SourceError, match="none of the 1 file is an image") as failed:
        convert_images(source, tmp_path / "set", options())
    found = re.search(r"`brand (convert \w+)` reads files such as x\.", str(failed.value))
    assert found is not None, failed.value
    assert brand(*found[1].split(), source, tmp_path / "set").code == 0


def test_a_table_next_to_a_folder_of_images_is_no_table_of_transcripts(tmp_path: Path) -> None:
    """Kaggle's layout: the message names the option that takes the table, and it helps."""
    source = tmp_path / "some data"
    (source / "pictures").mkdir(parents=True)
    for number in range(3):
        (source / "pictures" / f"{number:03}.png").write_bytes(png(4, number))
    (source / "train.csv").write_text("id_code,diagnosis\n002,1\n000,0\n001,2\n")
    told = brand("convert", "images", source, tmp_path / "set")
    assert told.code == 2
    hint = re.search(
        r"If train.csv has a row for each image, name the folder of these images, with (.*) COLUMN$", told.err
    )
    assert hint, told.err
    told = brand("convert", "images", source / "pictures", tmp_path / "set", *shlex.split(hint[1]), "id_code")
    assert told.code == 0, told.err
    assert [(s["key"], s["diagnosis"]) for s in BrandDataset(tmp_path / "set")] == [  # type: ignore[attr-defined]
        ("000.png", 0), ("001.png", 2), ("002.png", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "annotates"),
    [
        ("annotations/instances_train2017.json", True), ("_annotations.coco.json", True), ("Annotations/a.xml", True),
        ("labels/train/a1.txt", True), ("list_attr_celeba.csv", True), ("train_labels.txt", True),
        ("notes.txt", False), ("about/README.md", False), ("LICENSE", False),
    ],
)  # fmt: skip
def test_annotations_are_not_left_out_for_a_hint(name: str, annotates: bool, tmp_path: Path) -> None:
    """Boxes and labels next to images are what the training needs: the message names the ways to keep them."""
    pictures(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("0 0.5 0.5 0.2 0.2\n")
    told = brand("convert", "images", tmp_path, tmp_path.parent / f"{tmp_path.name}.brand", "--no-labels")
    assert told.code == 1
    assert ("brand.pack takes any annotations (docs/guides/detection-and-segmentation.md)" in told.err) == annotates
    assert told.err.strip().endswith("leaves such files out and lists them" + ", with what they say" * annotates), (
        told.err
    )


def test_a_folder_of_one_split_names_the_option(tmp_path: Path) -> None:
    """LibriSpeech's top folder holds one split if one was downloaded."""
    chapter = tmp_path / "LibriSpeech" / "dev-clean" / "84" / "121123"
    chapter.mkdir(parents=True)
    (chapter / "84-121123-0000.wav").write_bytes(wav(9))
    (chapter / "84-121123.trans.txt").write_text("84-121123-0000 GO\n")
    command = ["convert", "audio", tmp_path / "LibriSpeech", tmp_path / "set", "--no-labels"]
    told = brand(*command)
    hint = re.search(r"holds the split dev-clean, which is no class: (--split dev-clean) converts it", told.err)
    assert hint, told.err
    assert brand(*command, *hint[1].split()).code == 0
    assert BrandDataset(tmp_path / "set")[0]["text"] == "GO"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 samples with lengths in a column, one of them nan."""
    folder = tmp_path_factory.mktemp("texts") / "set"
    rows = [
        {"tokens": np.arange(n + 1), "count": n + 1, "seconds": float("nan") if n == 3 else n / 10} for n in range(40)
    ]
    pack(rows, folder, {"tokens": "ndarray", "count": "int", "seconds": "float"}, chunk_size=8, jobs=1)
    return folder


@pytest.mark.parametrize(
    ("length", "limits"),
    [("count", {"batch_length": 20}), ("seconds", {"batch_size": 4}), ("array", {"batch_length": 20})],
)
def test_samples_that_are_too_long_are_left_out_as_the_message_says(
    texts: Path, length: str, limits: dict[str, Any]
) -> None:
    """The condition names the field, or the array of the user."""
    ds = BrandDataset(texts)
    lengths = ds.column("count")
    given = lengths if length == "array" else length
    with pytest.raises(UsageError, match="subset=") as failed:
        LengthBatchSampler(ds, given, **limits)
    found = re.search(r"subset=(.*), where", str(failed.value))
    assert found is not None, failed.value
    subset = eval(found[1], {"ds": ds, "lengths": lengths})
    assert 0 < sum(map(len, LengthBatchSampler(ds, given, subset=subset, **limits))) < 40


def test_lengths_that_a_packed_sampler_takes(texts: Path) -> None:
    """None is not among them; for the other sampler it is."""
    ds = BrandDataset(texts)
    with pytest.raises(SchemaError, match="Give an `int` field, or an array of the number of tokens") as failed:
        PackedBatchSampler(ds, "none", tokens_per_row=64, rows_per_batch=2)
    assert "None" not in str(failed.value)
    assert list(PackedBatchSampler(ds, "count", tokens_per_row=64, rows_per_batch=2))
    with pytest.raises(SchemaError, match="or None for the bytes of each sample"):
        LengthBatchSampler(ds, "none", batch_size=2)
    assert list(LengthBatchSampler(ds, None, batch_size=2))


def test_what_a_sampler_is_given_in_place_of_a_data_set(texts: Path) -> None:
    """A loader, a subset, anything else."""
    ds = BrandDataset(texts)
    loader, part = DataLoader(ds), Subset(ds, range(10))
    with pytest.raises(UsageError, match=r"DataLoader: give it the data set of the loader, loader\.dataset$"):
        BrandSampler(loader)  # type: ignore[arg-type]
    assert len(list(BrandSampler(loader.dataset))) == 40  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"\(part\.dataset, subset=part\.indices\)$"):
        BrandSampler(part)  # type: ignore[arg-type]
    assert len(list(BrandSampler(part.dataset, subset=part.indices))) == 10  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"not from a list: give it the data set itself$"):
        BrandSampler([1, 2])  # type: ignore[arg-type]


def test_accelerate_and_ranks_that_get_equal_batches(texts: Path) -> None:
    """To leave out the ranks would break tensor parallelism; it is right if every process is a rank."""
    sampler = BrandSampler(BrandDataset(texts), num_replicas=2, rank=0)
    assert sampler._one_of_both(2) == "Leave out num_replicas= and rank="
    assert "keep num_replicas= and rank=, and leave out accelerator.prepare(loader)" in sampler._one_of_both(8)


def test_a_cache_that_the_group_may_write_to(texts: Path, tmp_path: Path) -> None:
    """As Kubernetes leaves it for an fsGroup, with the commands that repair it."""

    def delivered() -> int:
        ds = BrandDataset(texts, fields=("count",), cache=str(tmp_path / "cache"))
        return sum(len(counts) for (counts,) in BrandLoader(ds, 8))

    assert delivered() == 40
    for path in (tmp_path / "cache").rglob("*"):
        path.chmod(path.stat().st_mode | 0o2020 if path.is_dir() else path.stat().st_mode | 0o020)
    (tmp_path / "cache").chmod(0o2770)
    for _ in range(10):
        with suppress(ServerError):
            assert delivered() == 40
            return
        with pytest.raises(ServerError, match="fsGroupChangePolicy: OnRootMismatch") as failed:
            delivered()
        found = re.search(r"`(chmod -R go-w [^`]*)`", str(failed.value))
        assert found is not None
        subprocess.run(shlex.split(found[1]), check=True)
    raise AssertionError("the commands do not help")


def test_the_index_of_a_url_that_others_may_write_to(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the group may write to is used, and closed to it. For all others, the message is a sentence that helps."""
    with bucket(tmp_path, monkeypatch) as store:
        shutil.copytree(texts, store.place("texts.brand"))
        copied = copy_index("s3://bucket/texts.brand")
        for mode in (0o2770, 0o777):
            for folder in (copied, copied.parent):
                folder.chmod(mode)
            if mode == 0o777:
                with pytest.raises(CacheError, match=r"^other users may write to ") as failed:
                    StoredDataSet("s3://bucket/texts.brand")
                found = re.search(r"`(chmod -R go-w [^`]*)`", str(failed.value))
                assert found is not None
                subprocess.run(shlex.split(found[1]), check=True)
            assert len(StoredDataSet("s3://bucket/texts.brand")) == 40
            assert not copied.stat().st_mode & 0o022


def test_errors_of_other_processes_keep_their_class_and_text() -> None:
    """None becomes a dict."""
    for error in (CacheError("no"), MissingExtraError("pip"), UsageError("x")):
        again = unpack_error(json.loads(json.dumps(pack_error(error))))
        assert (type(again), str(again)) == (type(error), str(error))


def test_a_file_that_cannot_be_read_has_the_advice_for_its_cause() -> None:
    """Rebuilding an index helps only if the index is damaged."""
    repair = "`brand reindex` rebuilds it"
    assert remedy_for(OSError(5, "Input/output error"), repair) == repair
    assert remedy_for(ValueError("mmap"), repair) == repair
    for number in (1, 12, 13, 19, 23, 24, 107, 116):
        told = remedy_for(OSError(number, os.strerror(number)), repair)
        assert "reindex" not in told, number
    assert "cp -r" in remedy_for(OSError(19, "No such device"), repair)


def test_an_index_is_not_blamed_for_too_many_open_files(texts: Path) -> None:
    """The limit is named, and raising it helps."""
    code = (
        "import os, resource, sys\n"
        "from brand.storage.dataset.dataset import StoredDataSet\n"
        "data = StoredDataSet(sys.argv[1])\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "os.listdir('/proc/self/fd')\n"
        "used = max(map(int, os.listdir('/proc/self/fd')))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))\n"
        "try: data.column('count')\n"
        "except Exception as error: print(error)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "print(len(data.column('count')))\n"
    )
    told = subprocess.run([sys.executable, "-c", code, texts], capture_output=True, text=True, check=True).stdout
    assert "raise the limit, `ulimit -n`" in told
    assert "reindex" not in told
    assert told.splitlines()[-1] == "40"


def test_a_partition_gets_its_index_from_another_one(texts: Path, tmp_path: Path) -> None:
    """Its own chunks are not enough to rebuild it."""
    one, other = tmp_path / "one", tmp_path / "other"
    assert brand("partition", texts, one, other, "--nodes", 2).code == 0
    (one / "columns" / "count.npy").unlink()
    with pytest.raises(MissingFileError, match="Copy it from another partition") as failed:
        StoredDataSet(one).column("count")
    assert failed.value.path is not None
    shutil.copy(other / "columns" / "count.npy", failed.value.path)
    assert StoredDataSet(one).column("count").tolist() == list(range(1, 41))


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Not only one that is missing."""
    (tmp_path / "brand.json").symlink_to("brand.json")
    with pytest.raises(UnreadableError, match=r"brand\.json: cannot be read: "):
        BrandDataset(tmp_path)


def test_a_library_that_does_not_load_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """soundfile without libsndfile raises OSError."""
    monkeypatch.delitem(sys.modules, "soundfile", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "soundfile.py").write_text("raise OSError('sndfile library not found')")
    with pytest.raises(MissingExtraError, match=r"\(sndfile library not found\): pip install --force-reinstall"):
        soundfile()
    (tmp_path / "soundfile.py").write_text("raise ModuleNotFoundError('No module named soundfile')")
    with pytest.raises(MissingExtraError, match=r"needs the package soundfile: pip install 'brand-data\[audio\]'$"):
        soundfile()


def test_the_name_of_an_object_is_no_cause() -> None:
    """A store fails, and the key has the word of another cause."""
    url = "s3://bucket/Token-data/credentials.brand"
    error = failed(OSError("Error performing GET Token-data/credentials.brand: connection reset"), url)
    assert "no credentials" not in str(error)
    assert "connection reset" in str(error)
    assert "no credentials were found" in str(failed(OSError("Token error"), url))


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_that_rgb_would_clip_become_an_array(mode: str, tmp_path: Path) -> None:
    """As the message says; `convert('RGB')` would make them white."""
    image = Image.fromarray(np.array([[1, 300], [40000, 70000]], {"I": np.int32, "F": np.float32}[mode]))
    with pytest.raises(TypeError, match=r"give np\.asarray\(image\) for an 'ndarray' field") as failed:
        file_of(image)
    assert "convert" not in str(failed.value)
    pack([{"pixels": np.asarray(image)}], tmp_path / "set", {"pixels": "ndarray"}, jobs=1)
    assert np.array_equal(library.open(tmp_path / "set").sample(0)["pixels"], np.asarray(image))


def test_a_hint_follows_one_full_stop(tmp_path: Path) -> None:
    """Whether the library's text ends with one or not."""
    for what in ("it is damaged", "it is damaged."):
        assert "it is damaged. Do this" in str(DecodeError(what, path=tmp_path / "x", hint="Do this"))
        assert str(SourceError("x", what, hint="Do this")) == "x: it is damaged. Do this"
    with pytest.raises(ValueError, match=r"[^.]$"):
        decode_audio(b"RIFF\x24\0\0\0WAVEfmt " + bytes(50))


class Failing:
    """An indexable whose seventh sample cannot be read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 7:
            raise RuntimeError("the disk of the user")
        return {"x": index}


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("indexable", [True, False])
def test_an_error_of_the_users_samples_has_a_note(tmp_path: Path, jobs: int, indexable: bool) -> None:
    """Which sample it was; the error itself stays what it is."""
    samples: Any = Failing() if indexable else (Failing()[index] for index in range(20))
    with pytest.raises(RuntimeError, match="the disk of the user") as failed:
        pack(samples, tmp_path / "set", {"x": "int"}, jobs=jobs)
    assert "while reading sample 7" in failed.value.__notes__


def test_one_sample_is_now_one_chunk(tmp_path: Path) -> None:
    """In words."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.png").write_bytes(png(4, 9))
    assert "1 sample is now 1 chunk of " in brand("convert", "images", tmp_path / "source", tmp_path / "set").out


def test_a_text_that_is_no_utf8_is_one_bad_row(tmp_path: Path) -> None:
    """In a column of texts, Arrow does not check it."""
    column = pyarrow.array([b"a", b"\xff\xfe", b"c"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "x.parquet")
    told = brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "set")
    assert told.code == 1
    assert "x.parquet: row 1: a value cannot be read: " in told.err
    assert brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "set", "--on-error", "skip").code == 0
    data = library.open(tmp_path / "set")
    assert [data.sample(index)["text"] for index in range(len(data))] == ["a", "c"]
    with pytest.raises(SchemaError, match="row 1, a value cannot be read"):
        pack(pyarrow.parquet.read_table(tmp_path / "x.parquet"), tmp_path / "packed", jobs=1)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda torch: torch.ones(2, requires_grad=True), id="gradient"),
        pytest.param(lambda torch: torch.ones(2).to_sparse(), id="sparse"),
        pytest.param(lambda torch: torch.ones(2, dtype=torch.bfloat16), id="bfloat16"),
    ],
)
def test_a_tensor_that_is_no_array_names_the_sample(tmp_path: Path, value: Callable[[Any], Any]) -> None:
    """PyTorch raises RuntimeError, TypeError or others."""
    import torch

    samples = [{"x": torch.ones(2)}, {"x": value(torch)}]
    with pytest.raises(SchemaError, match=r"sample 1, field 'x' \(ndarray\): "):
        pack(samples, tmp_path / "set", {"x": "ndarray"}, jobs=1)
    with pytest.raises(SchemaError, match=r"sample 0, field 'x': expected float"):
        pack([{"x": value(torch)}], tmp_path / "set", {"x": "float"}, jobs=1)


def test_a_path_that_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    """No traceback: a name may be too long for any command."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.png").write_bytes(png(4, 9))
    name = tmp_path / ("x" * 300)
    for command in ("append", "convert"):
        told = brand(command, "images", tmp_path / "source", name)
        assert (told.code, told.err.count("Traceback")) == (1, 0)
        assert "the name is too long for this file system" in told.err


@pytest.mark.slow
def test_a_full_disk_is_told_by_append(texts: Path, tmp_path: Path) -> None:
    """Where the files of a data set are copied, and not linked."""
    if subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody make namespaces")
    (tmp_path / "disk").mkdir()
    script = 'mount -t tmpfs -o size=8k tmpfs "$1" && exec "$2" -m brand append dataset "$3" "$1/set"'
    command = ["unshare", "-Urm", "sh", "-c", script, "sh", str(tmp_path / "disk"), sys.executable, str(texts)]
    told = subprocess.run(command, check=False, capture_output=True, text=True)
    assert told.returncode == 1
    assert "no space left on the device. Free some space and run the same command again" in told.stderr
    assert "Traceback" not in told.stderr


class Awkward:
    """A value that raises whatever is done with it."""

    def __array__(self, *_: object, **__: object) -> None:
        raise ZeroDivisionError("no array")

    def __len__(self) -> int:
        raise LookupError("no length")

    def __float__(self) -> float:
        raise AttributeError("no float")


@pytest.mark.parametrize("codec", ["ndarray", "str", "bytes", "image", "audio", "json", "int", "float"])
def test_a_value_that_raises_names_the_sample(codec: str, tmp_path: Path) -> None:
    """Any exception, by any codec."""
    with pytest.raises(SchemaError, match="sample 0, field 'x'"):
        pack([{"x": Awkward()}], tmp_path / "set", {"x": codec}, jobs=1)


def test_a_truncated_pillow_image_names_the_sample(tmp_path: Path) -> None:
    """It is changed, so its pixels must be read when it is packed; Pillow raises OSError then."""
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(whole, "PNG")
    broken = Image.open(io.BytesIO(whole.getvalue()[:2000]))
    broken.seek(0)
    broken.tile.append(broken.tile[0])
    broken.fp = None
    with pytest.raises(SchemaError, match=r"sample 0, field 'x' \(image\): "):
        pack([{"x": broken}], tmp_path / "set", {"x": "image"}, jobs=1)


@pytest.mark.parametrize(
    "error", [KeyError("x"), ZeroDivisionError("y"), AssertionError(), RuntimeError(""), RecursionError("deep")]
)
def test_any_error_of_a_plug_in_of_pillow_is_a_value_error(error: Exception) -> None:
    """Also one without a text."""
    from brand.formats.media import check_image
    from brand.formats.pixels import decode_image

    def accept(prefix: bytes) -> bool:
        return prefix.startswith(b"PLUGIN")

    def opened(*_: object) -> Image.Image:
        raise error

    Image.register_open("TESTED", opened, accept)  # type: ignore[arg-type]
    try:
        for decode in (decode_image, check_image):
            with pytest.raises(ValueError, match=rf"^Pillow cannot decode it: .*{type(error).__name__}|^Pillow cannot"):
                decode(b"PLUGIN" + bytes(100))
    finally:
        Image.ID.remove("TESTED")
        Image.OPEN.pop("TESTED")


def test_an_image_that_is_too_large_is_refused() -> None:
    """Before memory is taken for its pixels."""
    from brand.formats.pixels import decode_image

    head = io.BytesIO()
    Image.new("L", (1, 1)).save(head, "PNG")
    data = bytearray(head.getvalue())
    data[16:24] = (100_000).to_bytes(4, "big") * 2
    import zlib

    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(ValueError, match="Pillow refuses it"):
        decode_image(bytes(data))


def test_deep_json_in_a_tar_is_one_bad_sample(tmp_path: Path) -> None:
    """Python raises RecursionError."""
    files = {"a.json": b"[1]", "b.json": b"[" * 100_000, "c.json": b"[3]"}
    (tmp_path / "x.tar").write_bytes(tar_of(files))
    told = brand("convert", "webdataset", tmp_path / "x.tar", tmp_path / "set", "--on-error", "skip")
    assert told.code == 0, told.err
    assert len(StoredDataSet(tmp_path / "set")) == 2


def test_bytes_inside_a_struct_are_left_out_with_columns(tmp_path: Path) -> None:
    """No codec holds them, so --field would not help."""
    table = pyarrow.table({"n": [1, 2], "where": [{"name": "a", "data": b"xyz"}, {"name": "b", "data": b""}]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    said = brand("convert", "parquet", tmp_path / "a.parquet", tmp_path / "a.brand")
    assert "JSON has no bytes (at ['data'])" in said.err
    assert "--columns takes the fields that it names, and no others" in said.err
    assert brand("convert", "parquet", tmp_path / "a.parquet", tmp_path / "a.brand", "--columns", "n").code == 0


def test_samples_without_fields_are_no_empty_file(tmp_path: Path) -> None:
    """A file of empty objects is told from an empty one."""
    for name, text, expected in (("a", "{}{}", "its samples have no fields: 2 objects {}"), ("b", "", "is empty")):
        (tmp_path / f"{name}.jsonl").write_text(text)
        said = brand("convert", "jsonl", tmp_path / f"{name}.jsonl", tmp_path / f"{name}.brand")
        assert (said.code != 0, expected in said.err) == (True, True), said.err


def test_images_that_pillow_does_not_open_or_keep(tmp_path: Path) -> None:
    """`--validate --on-error skip` leaves the former out, and arrays keep the channels of the latter."""
    source, values = tmp_path / "in", np.arange(12 * 8 * 4, dtype=np.uint8).reshape(12, 8, 4)
    source.mkdir()
    (source / "a.tif").write_bytes(SELDOM["TIFF of float64"].data)
    (source / "b.tif").write_bytes(tiff(values, extra=(0,)))
    told = json.loads(brand("convert", "images", source, tmp_path / "set", "--json").out)["noticed"]
    texts = {fact["what"]: fact["text"] for fact in told}
    found = re.search(r"not open: (.*) leaves it out", texts["images_not_opened"])
    assert found is not None
    assert json.loads(brand("info", tmp_path / "set", "--json").out)["noticed"] == told
    again = json.loads(brand("convert", "images", source, tmp_path / "two", *found[1].split(), "--json").out)
    assert [fact["what"] for fact in again["noticed"]] == ["images_with_channels_lost"]
    assert texts["images_with_channels_lost"] == "1 image has more channels than Pillow decodes: no mode keeps them"
    reads = BrandDataset(tmp_path / "two", decode={"image": library.DecodeImage(mode="unchanged")})
    with pytest.raises(DecodeError, match="more than the 3 channels that Pillow decodes: pack such images as arrays"):
        reads[0]
    pack([{"image": values}], tmp_path / "arrays", {"image": "ndarray"})
    assert np.array_equal(BrandDataset(tmp_path / "arrays")[0]["image"], values)


def test_an_index_that_cannot_be_read_is_not_called_wrong(tmp_path: Path) -> None:
    """A store that refuses, or a folder in its place, says nothing about the contents."""
    (tmp_path / "mds" / "index.json").mkdir(parents=True)
    said = brand("convert", "mds", tmp_path / "mds", tmp_path / "a.brand")
    assert "it cannot be read: " in said.err
