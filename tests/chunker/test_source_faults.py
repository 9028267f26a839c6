"""Files that cannot be used: each is an error or a line of the report, with path and reason; the rest is kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from brand.chunker import Report, convert_audio, convert_images
from brand.chunker.plan.report import StageProgress
from brand.errors import SourceError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.unpack import unpack
from brand.storage.maintenance.verify import verify
from tests.support import brand, files_below, options, tree_digest


@pytest.fixture
def folder(photos: Path, tmp_path: Path) -> Path:
    """A copy of the real photos that a test may spoil."""
    shutil.copytree(photos, tmp_path / "photos")
    return tmp_path / "photos"


def truncate(path: Path) -> None:
    """Cut off the second half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def truncated_jpeg(folder: Path) -> str:
    truncate(folder / "outdoors" / "rocket.jpg")
    return "outdoors/rocket.jpg"


def truncated_png(folder: Path) -> str:
    truncate(folder / "documents" / "page.png")
    return "documents/page.png"


def damaged_webp(folder: Path) -> str:
    path = folder / "animals" / "fish4.webp"
    path.write_bytes(path.read_bytes()[:20] + bytes(200))
    return "animals/fish4.webp"


def text_named_png(folder: Path) -> str:
    (folder / "tools" / "saw.png").write_text("This is not a picture, it is a text.\n" * 9)
    return "tools/saw.png"


def clip_named_png(folder: Path) -> str:
    clip = Path(__file__).parents[2] / "examples/data/clips/it_IT_m_Carlo/digits__1.wav"
    shutil.copy(clip, folder / "tools" / "saw.png")
    return "tools/saw.png"


def zeros(folder: Path) -> str:
    (folder / "tools" / "saw.png").write_bytes(bytes(5000))
    return "tools/saw.png"


def empty(folder: Path) -> str:
    (folder / "tools" / "saw.png").write_bytes(b"")
    return "tools/saw.png"


def only_a_signature(folder: Path) -> str:
    (folder / "tools" / "saw.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return "tools/saw.png"


def dangling_link(folder: Path) -> str:
    (folder / "tools" / "saw.png").symlink_to("nowhere.png")
    return "tools/saw.png"


def pipe(folder: Path) -> str:
    os.mkfifo(folder / "tools" / "saw.png")
    return "tools/saw.png"


def name_that_is_not_utf_8(folder: Path) -> str:
    name = os.path.join(os.fsencode(folder), b"tools", b"\xff.png")
    shutil.copy(os.fsencode(folder / "tools" / "key.png"), name)
    return "tools/\\xff.png"


FOUND_AT_ONCE = [empty, dangling_link, pipe, name_that_is_not_utf_8]
FOUND_BY_KIND = [text_named_png, clip_named_png, zeros]
FOUND_BY_DECODING = [truncated_jpeg, truncated_png, damaged_webp, only_a_signature]
ALL = [*FOUND_AT_ONCE, *FOUND_BY_KIND, *FOUND_BY_DECODING]
Spoil = Callable[[Path], str]


def keys(target: Path) -> list[str]:
    """Keys in index order."""
    stored = StoredDataSet(target)
    return [stored.sample(index)["key"] for index in range(len(stored))]


@pytest.mark.parametrize("spoil", ALL)
def test_a_bad_file_stops_the_conversion_with_its_path_and_reason(folder: Path, tmp_path: Path, spoil: Spoil) -> None:
    """`--on-error fail`, everything decoded: the first bad file is named, and nothing is published."""
    name = spoil(folder)
    with pytest.raises(SourceError) as caught:
        convert_images(folder, tmp_path / "set", options(validate=True))
    assert caught.value.path == name
    assert caught.value.reason
    assert "--on-error skip" in str(caught.value)
    assert "0x" not in str(caught.value)
    assert not (tmp_path / "set" / "brand.json").exists()


@pytest.mark.parametrize("spoil", [*FOUND_AT_ONCE, *FOUND_BY_KIND])
def test_what_is_no_image_is_found_without_decoding(folder: Path, tmp_path: Path, spoil: Spoil) -> None:
    """Contents are looked at in every conversion; text under the name of a PNG is not stored as an image."""
    name = spoil(folder)
    told = brand("convert", "images", folder, tmp_path / "set", "-j", 2)
    assert told.code == 1
    assert f"{name}: " in told.err
    assert "--on-error skip" in told.err


@pytest.mark.parametrize("spoil", FOUND_BY_DECODING)
def test_what_only_decoding_finds_is_kept_bit_for_bit_without_it(folder: Path, tmp_path: Path, spoil: Spoil) -> None:
    """Without `--validate` a cut picture is stored as it is: nothing is lost, and unpack gives it back."""
    spoil(folder)
    convert_images(folder, tmp_path / "set", options())
    unpack(tmp_path / "set", tmp_path / "back")
    assert files_below(tmp_path / "back") == files_below(folder)


@pytest.mark.slow
@pytest.mark.parametrize("spoil", ALL)
def test_skipping_leaves_out_exactly_the_bad_file(photos: Path, folder: Path, tmp_path: Path, spoil: Spoil) -> None:
    """`--on-error skip`: report and skipped.tsv list it with its reason, everything else comes back."""
    name = spoil(folder)
    report = convert_images(folder, tmp_path / "set", options(8, skip_errors=True, jobs=2))
    assert [problem.path for problem in report.skipped] == [name]
    head, line = (tmp_path / "set" / "skipped.tsv").read_text(encoding="utf-8").splitlines()
    assert head == "path\treason"
    assert line.split("\t") == [name, " ".join(report.skipped[0].reason.split())]
    unpack(tmp_path / "set", tmp_path / "back")
    good = {key: data for key, data in files_below(photos).items() if key != name}
    assert files_below(tmp_path / "back") == good
    assert keys(tmp_path / "set") == sorted(good)
    assert [error for step in verify(tmp_path / "set") for error in step.errors] == []


@pytest.mark.slow
def test_many_bad_files_are_all_listed(photos: Path, folder: Path, tmp_path: Path) -> None:
    """Sorted by path, each once; the command shows the first ten and says how many there are."""
    names = {spoil(folder) for spoil in (truncated_jpeg, truncated_png, damaged_webp, name_that_is_not_utf_8)}
    for number in range(12):
        (folder / "animals" / f"bad{number:02}.jpg").write_text("no")
        names.add(f"animals/bad{number:02}.jpg")
    told = brand("convert", "images", folder, tmp_path / "set", "--on-error", "skip", "-j", 2)
    assert told.code == 0
    assert "16 files cannot be used" in told.out
    assert "skipped.tsv" in told.out
    assert "and 6 more" in told.out
    listed = [line.split("\t")[0] for line in (tmp_path / "set" / "skipped.tsv").read_text().splitlines()[1:]]
    assert listed == sorted(names)
    as_json = brand("convert", "images", folder, tmp_path / "again", "--on-error", "skip", "--json").json
    assert sorted(problem["path"] for problem in as_json["skipped"]) == listed
    assert tree_digest(tmp_path / "set") == tree_digest(tmp_path / "again")
    assert len(keys(tmp_path / "set")) == len(files_below(photos)) - 3


def test_how_many_more_there_are_is_said_at_the_first(folder: Path, tmp_path: Path) -> None:
    """Someone with a thousand bad files need not find them one by one."""
    for number in range(5):
        (folder / "animals" / f"bad{number}.jpg").write_bytes(b"")
    with pytest.raises(SourceError, match="4 more files"):
        convert_images(folder, tmp_path / "set", options())


def test_a_folder_in_which_nothing_can_be_used_is_a_source_error(tmp_path: Path) -> None:
    """Also where errors are skipped: a data set has at least one sample."""
    (tmp_path / "src" / "a").mkdir(parents=True)
    (tmp_path / "src" / "a" / "1.png").write_text("no")
    for skip in (False, True):
        with pytest.raises(SourceError, match=r"1\.png"):
            convert_images(tmp_path / "src", tmp_path / "set", options(skip_errors=skip, validate=True))


def test_the_suffix_does_not_matter(photos: Path, tmp_path: Path) -> None:
    """A file's kind is found from its contents: PNG named .jpg, JPEG without a suffix, WebP named .txt."""
    source = tmp_path / "src" / "a"
    source.mkdir(parents=True)
    shutil.copy(photos / "markers" / "board.jpg", source / "really_png.jpg")
    shutil.copy(photos / "outdoors" / "rocket.jpg", source / "rocket")
    shutil.copy(photos / "animals" / "fish4.webp", source / "fish.txt")
    report = convert_images(tmp_path / "src", tmp_path / "set", options(validate=True))
    assert report.samples == 3
    assert keys(tmp_path / "set") == ["a/fish.txt", "a/really_png.jpg", "a/rocket"]


def test_two_files_of_one_stem_are_two_samples(photos: Path, tmp_path: Path) -> None:
    """`key.png` and `key.jpg` in one folder, and the same name in two folders."""
    for name, place in {
        "tools/key.png": "a/x.png",
        "outdoors/rocket.jpg": "a/x.jpg",
        "documents/page.png": "b/x.png",
    }.items():
        (tmp_path / "src" / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / name, tmp_path / "src" / place)
    convert_images(tmp_path / "src", tmp_path / "set", options())
    assert keys(tmp_path / "set") == ["a/x.jpg", "a/x.png", "b/x.png"]
    unpack(tmp_path / "set", tmp_path / "back")
    assert files_below(tmp_path / "back") == files_below(tmp_path / "src")


@pytest.mark.slow
def test_clips_that_do_not_decode_are_skipped(clips: Path, tmp_path: Path) -> None:
    """Audio: a text, a picture and a head without a body."""
    shutil.copytree(clips, tmp_path / "src", ignore=shutil.ignore_patterns("*.tsv"))
    speaker = tmp_path / "src" / "it_IT_m_Carlo"
    (speaker / "a.wav").write_text("no clip")
    shutil.copy(clips.parent / "photos" / "tools" / "key.png", speaker / "b.wav")
    (speaker / "c.ogg").write_bytes(next((clips / "zh_TW_ChuLo").glob("*.ogg")).read_bytes()[:100])
    report = convert_audio(tmp_path / "src", tmp_path / "set", options(skip_errors=True, jobs=2))
    assert [p.path.rpartition("/")[2] for p in report.skipped] == ["a.wav", "b.wav", "c.ogg"]
    assert report.samples == 41


def test_transcripts_of_skipped_clips_are_passed_over(clips: Path, tmp_path: Path) -> None:
    """A table may name a clip that could not be used."""
    shutil.copytree(clips, tmp_path / "src")
    (tmp_path / "src" / "it_IT_m_Carlo" / "digits__1.wav").write_bytes(b"")
    (tmp_path / "src" / "it_IT_m_Carlo" / "digits__2.wav").write_text("no clip")
    report = convert_audio(
        tmp_path / "src",
        tmp_path / "set",
        options(skip_errors=True),
        transcripts=tmp_path / "src" / "transcripts.tsv",
    )
    assert len(report.skipped) == 2
    assert report.samples == 39


def test_a_sidecar_of_a_skipped_clip_is_not_lost_without_a_word(clips: Path, tmp_path: Path) -> None:
    """Its text is given back by unpack, or it is listed as skipped with its clip."""
    source = tmp_path / "src" / "a"
    source.mkdir(parents=True)
    shutil.copy(clips / "it_IT_m_Carlo" / "digits__1.wav", source / "good.wav")
    (source / "bad.wav").write_text("no clip")
    (source / "good.txt").write_text("uno")
    (source / "bad.txt").write_text("due")
    report = convert_audio(tmp_path / "src", tmp_path / "set", options(skip_errors=True))
    unpack(tmp_path / "set", tmp_path / "back")
    kept = set(files_below(tmp_path / "back")) | {problem.path for problem in report.skipped}
    assert kept == set(files_below(tmp_path / "src"))


@pytest.mark.parametrize("change", ["longer", "shorter", "removed", "a folder"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_that_changes_during_the_conversion_is_named(
    folder: Path, tmp_path: Path, change: str, jobs: int
) -> None:
    """Between the scan and the reading: a SourceError, and the target stays unfinished."""
    victim = folder / "tools" / "key.png"

    def spoil(progress: StageProgress) -> None:
        if progress.stage == "scan" and progress.total is not None:
            if change in ("removed", "a folder"):
                victim.unlink()
                if change == "a folder":
                    victim.mkdir()
            else:
                victim.write_bytes(victim.read_bytes() + b"x" if change == "longer" else victim.read_bytes()[:-1])

    with pytest.raises(SourceError, match=r"tools/key\.png"):
        convert_images(folder, tmp_path / "set", options(4, jobs=jobs), on_progress=spoil)
    assert not (tmp_path / "set" / "brand.json").exists()


def test_a_missing_source_and_a_file_as_source_are_wrong_use(photos: Path, tmp_path: Path) -> None:
    """Exit code 2 with the path, and no target is made."""
    for source, words in ((tmp_path / "no", "no such folder"), (photos / "tools" / "key.png", "a file, not a folder")):
        told = brand("convert", "images", source, tmp_path / "set")
        assert told.code == 2
        assert words in told.err
        assert str(source) in told.err
        assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("kind", ["images", "audio"])
def test_an_empty_source_is_an_error_that_leaves_no_target(tmp_path: Path, kind: str) -> None:
    """Neither a data set nor an unfinished one is left of it."""
    (tmp_path / "src" / "empty class").mkdir(parents=True)
    told = brand("convert", kind, tmp_path / "src", tmp_path / "set")
    assert told.code == 1
    assert "no files in this folder" in told.err
    assert not (tmp_path / "set").exists()


def test_empty_classes_and_folders_come_back(folder: Path, tmp_path: Path) -> None:
    """A class without files keeps its label, and unpack makes its folder again."""
    (folder / "empty").mkdir()
    (folder / "tools" / "more" / "deep").mkdir(parents=True)
    report = convert_images(folder, tmp_path / "set", options())
    assert report.classes is not None
    assert len(report.classes) == 6
    stored = StoredDataSet(tmp_path / "set")
    assert stored.header.classes == ("animals", "documents", "empty", "markers", "outdoors", "tools")
    labels = stored.column("label")
    assert sorted(set(labels.tolist())) == [0, 1, 3, 4, 5]
    unpack(tmp_path / "set", tmp_path / "back")
    assert files_below(tmp_path / "back") == files_below(folder)


def test_a_class_folder_that_is_not_utf_8_is_wrong_use(folder: Path, tmp_path: Path) -> None:
    """Class names are stored as text; the message shows the bytes."""
    (folder / os.fsdecode(b"caf\xe9")).mkdir()
    with pytest.raises(UsageError, match=r"caf\\xe9.*not valid UTF-8"):
        convert_images(folder, tmp_path / "set", options())


def test_a_folder_within_a_class_that_is_not_utf_8_is_a_problem(photos: Path, folder: Path, tmp_path: Path) -> None:
    """Its files are listed one by one, and the rest is converted."""
    inner = os.path.join(os.fsencode(folder), b"tools", b"caf\xe9")
    Path(os.fsdecode(inner)).mkdir()
    shutil.copy(os.fsencode(photos / "tools" / "key.png"), os.path.join(inner, b"a.png"))
    report = convert_images(folder, tmp_path / "set", options(skip_errors=True))
    assert [problem.path for problem in report.skipped] == ["tools/caf\\xe9/a.png"]
    assert report.samples == 31


@pytest.mark.slow
def test_an_empty_folder_that_is_not_utf_8_is_no_crash(folder: Path, tmp_path: Path) -> None:
    """It cannot be kept by name: an error or a listed problem, never a traceback."""
    (folder / "tools" / os.fsdecode(b"caf\xe9")).mkdir()
    told = brand("convert", "images", folder, tmp_path / "set", "--on-error", "skip")
    assert told.code == 0, told.err
    assert "caf\\xe9" in told.out


@pytest.mark.slow
def test_names_of_any_valid_kind_come_back(photos: Path, tmp_path: Path) -> None:
    """Spaces, quotes, line breaks, tabs, backslashes, long, composed and decomposed."""
    names = [" a ", "b'\"", "c\nd", "e\tf", "g\\h", "é", "e\u0301", "日本", "-rf", "~", "%s {0} [red]", "n" * 250]
    for name in names:
        folder = tmp_path / "src" / f"c{len(name)}{name}"[:200]
        folder.mkdir(parents=True)
        shutil.copy(photos / "tools" / "key.png", folder / name)
    told = brand("convert", "images", tmp_path / "src", tmp_path / "set")
    assert told.code == 0, told.err
    assert brand("info", tmp_path / "set").code == 0
    unpack(tmp_path / "set", tmp_path / "back")
    assert files_below(tmp_path / "back") == files_below(tmp_path / "src")


@pytest.mark.slow
def test_a_dry_run_counts_what_a_conversion_would_write(folder: Path, tmp_path: Path) -> None:
    """Samples, chunks, bytes, classes and bad files are those of the conversion; nothing is written."""
    truncated_jpeg(folder)
    plan = options(8, skip_errors=True, dry_run=True)
    planned = convert_images(folder, tmp_path / "set", plan)
    assert not (tmp_path / "set").exists()
    made = convert_images(folder, tmp_path / "set", options(8, skip_errors=True))
    assert planned.dry_run
    for name in ("samples", "classes", "chunks", "chunk_size", "source_bytes", "compression", "skipped", "notes"):
        assert getattr(planned, name) == getattr(made, name), name
    assert abs(planned.stored_bytes - made.stored_bytes) < 0.02 * made.stored_bytes


@pytest.mark.slow
def test_validate_alone_checks_and_keeps_all(folder: Path, tmp_path: Path) -> None:
    """Good folders pass, and the result is the same as without."""
    told: list[str] = []
    convert_images(folder, tmp_path / "a", options(8, validate=True), on_progress=lambda p: told.append(p.stage))
    report: Report = convert_images(folder, tmp_path / "b", options(8))
    assert "check" in told
    assert report.skipped == ()
    assert tree_digest(tmp_path / "a") == tree_digest(tmp_path / "b")


def test_skipping_without_validating_still_leaves_out_what_is_no_image(folder: Path, tmp_path: Path) -> None:
    """`--on-error skip --no-validate`: what is met on the way is left out, or the message says what to pass."""
    text_named_png(folder)
    told = brand("convert", "images", folder, tmp_path / "set", "--on-error", "skip", "--no-validate", "-j", 1)
    if told.code:
        assert "--validate" in told.err, told.err
    else:
        assert "1 files cannot be used" in told.out
