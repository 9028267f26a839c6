"""A user's mistake is a message that names the thing and the next step, with exit code 2 or 1, never a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brand import pack
from brand.chunker import convert_images, convert_tokens
from brand.chunker.importers import FORMATS
from brand.errors import UsageError
from tests.support import LIMIT_S, Outcome, brand, brand_process

READERS = ("info", "verify", "unpack", "cat", "reindex")


def call(verb: str, target: Path, tmp_path: Path, *more: str) -> Outcome:
    """Run a reading verb with what else it needs."""
    extra: dict[str, list[object]] = {"unpack": [tmp_path / "out"], "cat": [0]}
    return brand(verb, target, *extra.get(verb, []), *more)


def assert_message(told: Outcome, code: int, *words: str) -> None:
    """The code, a message on stderr alone, and these words in it."""
    assert told.code == code, (told.code, told.out, told.err)
    assert told.out == ""
    assert "Traceback" not in told.err
    for word in words:
        assert word in told.err


@pytest.mark.parametrize("verb", READERS)
def test_a_path_that_is_not_there(verb: str, tmp_path: Path) -> None:
    """The message names it."""
    told = call(verb, tmp_path / "nowhere", tmp_path)
    assert_message(told, 1, str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("verb", READERS)
def test_a_file_in_place_of_a_data_set(verb: str, tmp_path: Path) -> None:
    """Also the manifest itself is no data set."""
    (tmp_path / "file").write_text("no data set")
    assert_message(call(verb, tmp_path / "file", tmp_path), 1, str(tmp_path / "file"))


@pytest.mark.parametrize("verb", READERS)
def test_a_folder_that_is_no_data_set(verb: str, tmp_path: Path) -> None:
    """The message says how to make one, or what is missing."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "picture.png").write_text("")
    told = call(verb, tmp_path / "folder", tmp_path)
    assert_message(told, 1, str(tmp_path / "folder"))
    assert "brand convert" in told.err
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["picture.png"]


@pytest.mark.parametrize("verb", READERS)
def test_an_unfinished_conversion(verb: str, tmp_path: Path, photos_set: Path) -> None:
    """Whatever of it is there: run the same command again."""
    shutil.copytree(photos_set, tmp_path / "set")
    (tmp_path / "set" / "brand.json").unlink()
    (tmp_path / "set" / ".brand-work").mkdir()
    assert_message(call(verb, tmp_path / "set", tmp_path), 1, "not finished", "same `brand convert` command again")


@pytest.mark.parametrize("verb", ["info", "verify", "unpack", "cat"])
def test_a_lost_manifest(verb: str, tmp_path: Path, photos_set: Path) -> None:
    """`brand reindex` helps, and the message says so."""
    shutil.copytree(photos_set, tmp_path / "set")
    (tmp_path / "set" / "brand.json").unlink()
    assert_message(call(verb, tmp_path / "set", tmp_path), 1, "`brand reindex`")
    assert brand("reindex", tmp_path / "set").code == 0
    assert call(verb, tmp_path / "set", tmp_path).code == 0


@pytest.mark.parametrize("verb", READERS)
def test_an_error_as_json_is_json(verb: str, tmp_path: Path) -> None:
    """stdout holds one document with type and message, stderr nothing."""
    told = call(verb, tmp_path / "nowhere", tmp_path, "--json")
    assert told.code == 1
    assert told.err == ""
    assert set(told.json["error"]) == {"type", "message"}
    assert told.json["error"]["type"] == "NotADataSetError"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((), "convert"),
        (("convert",), "images"),
        (("covert",), "covert"),
        (("convert", "video", "a", "b"), "video"),
        (("convert", "images", "a"), "DST"),
        (("convert", "images"), "SRC"),
        (("convert", "images", "a", "b", "-j", "0"), "0"),
        (("convert", "images", "a", "b", "-j", "two"), "two"),
        (("convert", "images", "a", "b", "--chunk-bytes", "many"), "many"),
        (("convert", "images", "a", "b", "--chunk-size", "0"), "0"),
        (("convert", "images", "a", "b", "--chunk-size", "4", "--chunk-bytes", "4MiB"), "not both"),
        (("convert", "images", "a", "b", "--seed", "-1"), "seed"),
        (("convert", "images", "a", "b", "--seed", "x"), "x"),
        (("convert", "images", "a", "b", "--compression", "gzip"), "gzip"),
        (("convert", "images", "a", "b", "--on-error", "ignore"), "ignore"),
        (("convert", "images", "a", "b", "--transcripts", "t.tsv"), "--transcripts"),
        (("convert", "images", "a", "b", "--fast"), "--fast"),
        (("info",), "DST"),
        (("cat", "a"), "INDEX"),
        (("cat", "a", "one"), "one"),
        (("unpack", "a"), "OUT"),
        (("partition", "a", "--nodes", "2"), "OUT"),
        (("partition", "a", "b"), "--nodes"),
        (("partition", "a", "b", "--nodes", "0"), "0"),
        (("partition", "a", "b", "--nodes", "5000"), "1024"),
        (("partition", "a", "b", "c", "--nodes", "2", "--group-chunks", "0"), "0"),
        (("partition", "a", "b", "--nodes", "2"), "{node}"),
        (("partition", "a", "b", "c", "--nodes", "3"), "3 nodes and 2 folders"),
    ],
)
def test_a_wrong_call_has_exit_code_2(args: tuple[str, ...], named: str, tmp_path: Path) -> None:
    """The message names what is wrong; nothing is written."""
    told = brand_in(tmp_path, *args)
    assert told.code == 2, told
    assert named in told.out + told.err
    assert "Traceback" not in told.err
    assert list(tmp_path.iterdir()) == []


def brand_in(folder: Path, *args: str) -> Outcome:
    """The command with `folder` as the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return brand(*args)
    finally:
        os.chdir(before)


@pytest.mark.parametrize("args", [("convert", "images", "a"), ("cat", "a", "x"), ("info", "--wrong", "a")])
def test_a_wrong_call_as_json_is_json(args: tuple[str, ...], tmp_path: Path) -> None:
    """Machines get a document for their mistakes, too."""
    told = brand_in(tmp_path, *args, "--json")
    assert told.code == 2
    assert told.json["error"]["type"] == "UsageError"


@pytest.mark.parametrize(
    ("index", "named"), [("31", "0 to 30"), ("1000000000000000000000000", "out of range"), ("-1", "-1")]
)
def test_an_index_out_of_range_is_wrong_use(photos_set: Path, index: str, named: str) -> None:
    """The message says which samples there are."""
    assert_message(brand("cat", photos_set, "--", index), 2, named)


def test_an_unknown_field_is_wrong_use(photos_set: Path) -> None:
    """The message lists the fields."""
    assert_message(brand("cat", photos_set, 0, "--field", "imgae"), 2, "imgae", "index, key, image, label")


def test_unpacking_python_samples_is_wrong_use(tmp_path: Path) -> None:
    """There is no folder to give back; the message says what there is instead."""
    pack([{"n": 1}], tmp_path / "set", {"n": "int"}, jobs=1)
    assert_message(brand("unpack", tmp_path / "set", tmp_path / "out"), 2, "brand cat", "BrandDataset")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_closed_pipe_is_no_traceback(photos_set: Path) -> None:
    """`brand info ... | head -0`."""
    read, write = os.pipe()
    os.close(read)
    for args in (["info", str(photos_set), "--json"], ["cat", str(photos_set), "0", "--field", "image"]):
        done = subprocess.run(
            [sys.executable, "-m", "brand", *args], stdout=write, stderr=subprocess.PIPE, check=False, timeout=LIMIT_S
        )
        assert b"Traceback" not in done.stderr
        assert b"Exception ignored" not in done.stderr
    os.close(write)


@pytest.mark.slow
def test_paths_that_are_not_utf_8_are_no_traceback(photos: Path, tmp_path: Path) -> None:
    """Source, target and results may lie under such names, also where the locale makes stdout strict."""
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    source, target = (Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))) for name in (b"s\xff", b"d\xff"))
    shutil.copytree(photos / "tools", source)
    for args in (
        ("convert", "images", source, target),
        ("info", target),
        ("info", target, "--json"),
        ("verify", target),
        ("cat", target, 0),
        ("unpack", target, tmp_path / "out"),
        ("convert", "images", source, target),
    ):
        told = brand_process(*args, env=strict)
        assert "Traceback" not in told.err, (args, told.err)
        assert told.code in (0, 2)


def test_a_field_without_permission_is_a_clear_error(tmp_path: Path, photos_set: Path) -> None:
    """A manifest that is a folder, as one that may not be read: a message, not a traceback."""
    shutil.copytree(photos_set, tmp_path / "set")
    (tmp_path / "set" / "brand.json").unlink()
    (tmp_path / "set" / "brand.json").mkdir()
    for verb in ("info", "verify", "cat"):
        assert_message(call(verb, tmp_path / "set", tmp_path), 1, str(tmp_path / "set"))


@pytest.mark.slow
def test_a_chunk_that_is_a_folder_is_a_clear_error(tmp_path: Path, photos_set: Path) -> None:
    """Verify and cat say which chunk it is."""
    shutil.copytree(photos_set, tmp_path / "set")
    for chunk in (tmp_path / "set" / "chunks").iterdir():
        chunk.unlink()
        chunk.mkdir()
    told = brand_process("verify", tmp_path / "set")
    assert "Traceback" not in told.err
    assert told.code == 1
    told = brand_process("cat", tmp_path / "set", 0)
    assert "Traceback" not in told.err
    assert told.code == 1
    told = brand_process("reindex", tmp_path / "set")
    assert "Traceback" not in told.err
    assert told.code == 1


@pytest.mark.parametrize("option", [("--task", "0/2"), ("--engine", "ray")])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_an_import_is_the_work_of_one_machine(kind: str, option: tuple[str, str], tmp_path: Path) -> None:
    """The message says why, and what to do; the help does not list the option."""
    told = brand("convert", kind, tmp_path, tmp_path / "set", *option)
    assert_message(told, 2, f"{option[0]} is for images and audio", "leave the option out")
    assert option[0] not in brand("convert", kind, "--help").out


@pytest.fixture(scope="module")
def grown(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of two versions. Not to be changed."""
    collection = tmp_path_factory.mktemp("grown") / "grown.brand"
    assert brand("append", "images", photos, collection, "-j1").code == 0
    assert brand("delete", collection, "--index", 0).code == 0
    return collection


@pytest.mark.parametrize(
    "arguments", [("info",), ("verify",), ("cat", 0), ("unpack", "OUT"), ("profile",), ("simulate",)]
)
def test_a_version_of_a_data_set_that_is_no_collection(
    arguments: tuple[object, ...], tmp_path: Path, photos_set: Path
) -> None:
    """The message says so, and not that there is no such folder."""
    verb, *more = arguments
    told = brand(verb, f"{photos_set}@1", *(tmp_path / "out" if each == "OUT" else each for each in more))
    assert_message(told, 2, f"{photos_set} is not a collection, so it has no version 1: name it without @1")


@pytest.mark.parametrize("arguments", [("copy", "OUT"), ("partition", "OUT", "--nodes", 1), ("reindex",), ("seal",)])
@pytest.mark.parametrize("version", ["", "@1"])
def test_a_collection_in_place_of_a_single_data_set(
    arguments: tuple[object, ...], version: str, tmp_path: Path, grown: Path
) -> None:
    """The message says that it is one, and where its segments are."""
    verb, *more = arguments
    told = brand(verb, f"{grown}{version}", *(tmp_path / "out" if each == "OUT" else each for each in more))
    assert_message(told, 2, f"{grown}{version} is a collection", f"{grown}/parts")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [("convert", "images"), ("append", "images"), ("copy",), ("unpack",), ("partition",)]
)
def test_the_name_of_a_version_is_no_target(
    arguments: tuple[str, ...], photos: Path, photos_set: Path, grown: Path
) -> None:
    """A folder of this name would hide the version."""
    source = photos if "images" in arguments else photos_set
    for number in (1, 9):
        more = ["--nodes", 1] if arguments == ("partition",) else []
        told = brand(*arguments, source, f"{grown}@{number}", *more)
        assert told.code != 0
        assert "version" in told.err
        assert not Path(f"{grown}@{number}").exists()


@pytest.mark.parametrize(
    "verb",
    [("convert", "tokens"), ("append", "tokens")],
)
@pytest.mark.parametrize(
    ("url", "how"),
    [
        ("s3://bucket/x", "`aws s3 sync s3://bucket/x FOLDER`"),
        ("s3://bucket/x/part-{000..146}.tar", "`aws s3 sync s3://bucket/x FOLDER`"),
        ("s3://bucket/x.tar", "`aws s3 cp s3://bucket/x.tar FOLDER/`"),
        ("gs://bucket/x", "`gcloud storage rsync --recursive gs://bucket/x FOLDER`"),
        ("az://box/x", "`az storage blob download-batch --source box --destination FOLDER --pattern 'x/*'`"),
        ("https://host/x.csv", "`curl --location --remote-name https://host/x.csv`"),
    ],
)
def test_a_source_in_a_store(verb: tuple[str, ...], url: str, how: str, tmp_path: Path) -> None:
    """Token files are local; the message has the command that copies them, and the URL as it was written."""
    told = brand(*verb, url, tmp_path / "out")
    assert_message(told, 2, f"{url}: a source is read from the disk of this machine", how)


@pytest.mark.parametrize("verb", [("convert", "images"), ("convert", "audio"), ("append", "images")])
def test_a_folder_on_a_web_server(verb: tuple[str, ...], tmp_path: Path) -> None:
    """Such a server does not list its files."""
    told = brand(*verb, "https://host/x", tmp_path / "out")
    assert_message(told, 2, "https://host/x: a source is read from the disk of this machine", "`wget --recursive")


def test_a_source_on_the_hub(tmp_path: Path) -> None:
    """Its pages are no folder; a URL hf:// is one, but for token files."""
    for kind, url in (
        ("tokens", "hf://datasets/owner/name"),
        ("images", "https://huggingface.co/datasets/owner/name/tree/main"),
    ):
        told = brand("convert", kind, url, tmp_path / "out")
        assert_message(told, 2, "`hf download --repo-type dataset owner/name --local-dir FOLDER`")


def test_a_url_as_a_path(photos: Path, tmp_path: Path) -> None:
    """A `Path` has lost a slash of the URL; `file://` is a path of this machine."""
    for source in ("s3://bucket/x", Path("s3://bucket/x")):
        with pytest.raises(UsageError, match=r"^s3://bucket/x: a source is read"):
            convert_tokens(source, tmp_path / "out")
    assert convert_images(f"file://{photos}", tmp_path / "out").samples == 31


@pytest.mark.parametrize("name", ["nowhere.tsv", "."])
def test_a_wrong_table_of_transcripts(name: str, tmp_path: Path) -> None:
    """The message names the table, and not the folder of the audio files."""
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.wav").write_bytes(b"")
    told = brand("convert", "audio", tmp_path / "clips", tmp_path / "out", "--transcripts", name)
    assert_message(told, 2, f"brand: {name}: ")


@pytest.mark.parametrize("kind", ["mds", "litdata"])
def test_a_source_that_is_no_folder(kind: str, tmp_path: Path) -> None:
    """Of the formats with an index, too."""
    (tmp_path / "file").write_text("")
    told = brand("convert", kind, tmp_path / "nowhere", tmp_path / "out")
    assert_message(told, 1, f"{tmp_path / 'nowhere'}: there is no such folder")
    told = brand("convert", kind, tmp_path / "file", tmp_path / "out")
    assert_message(told, 1, f"{tmp_path / 'file'}: it is a file, not a folder")
    assert "Errno" not in told.err


@pytest.mark.parametrize("kind", FORMATS)
def test_a_data_set_as_a_source(kind: str, photos_set: Path, grown: Path, tmp_path: Path) -> None:
    """It is converted already."""
    for source in (photos_set, grown, f"{grown}@1"):
        assert_message(brand("convert", kind, source, tmp_path / "out"), 2, f"{source} is a", "converted", "already")


@pytest.mark.parametrize("arguments", [("cache", "list"), ("cache", "clear"), ("cache", "fill", "SET")])
def test_a_cache_in_a_store(arguments: tuple[str, ...], photos_set: Path) -> None:
    """A cache is a folder of a local disk."""
    told = brand(*(photos_set if each == "SET" else each for each in arguments), "s3://bucket/x")
    assert_message(told, 2, "s3://bucket/x", "a folder on a local disk")


def test_a_collection_in_a_store() -> None:
    """The commands of collections name themselves, and what they take."""
    told = brand("append", "dataset", "s3://bucket/x", "c.brand")
    assert_message(told, 2, "`brand append dataset` works on a folder", "`brand copy s3://bucket/x FOLDER`")
    for arguments in (("versions",), ("compact",), ("delete", "--index", 0), ("overlay", "a=")):
        told = brand(arguments[0], "s3://bucket/x", *arguments[1:])
        assert_message(told, 2, f"`brand {arguments[0]}`", "a collection is a folder")


def test_files_that_cannot_be_read(grown: Path, tmp_path: Path) -> None:
    """The reason in words, once."""
    for told in (
        brand("overlay", grown, f"a={tmp_path}/nowhere.npy"),
        brand("delete", grown, "--key-file", tmp_path / "nowhere.npy"),
    ):
        assert_message(told, 2, f"{tmp_path}/nowhere.npy: the ", "cannot be read: No such file or directory")
        assert "Errno" not in told.err


def test_a_store_that_does_not_open() -> None:
    """Of a library that connects when it is asked for a store: one line, and no traceback."""
    pytest.importorskip("fsspec")
    told = brand("info", "ftp://127.0.0.1:9/x")
    assert_message(told, 2, "ftp://127.0.0.1:9/x: ", "refused")
