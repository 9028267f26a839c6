"""Columns of a transcript table beside the text: they become fields where they are named, and are told where not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from brand import BrandDataset
from brand.chunker import Report, convert_audio
from brand.errors import SchemaError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.unpack import unpack
from brand.storage.maintenance.verify import verify
from tests.support import brand, files_below, options, tree_digest

HEAD = "path\ttext\tlang\tspeaker name\tspeaker\tlabel\n"
ROWS = {
    "a/1.wav": ("uno", "it", "C", "Carlo", "7"),
    "a/2.wav": ("", "it\u00e9", "", "Carlo", "8"),
    "b/1.wav": ("un", "", "J", "", ""),
}
"""Text, language, initial, speaker, number of each clip but the last, which the table does not name."""
NAMED = "The columns lang, speaker name, speaker, label of t.tsv are not read; --columns lang,speaker adds them"


@pytest.fixture
def speech(clips: Path, tmp_path: Path) -> Path:
    """Four clips of two speakers, and a table beside the folder."""
    source = clips / "it_IT_m_Carlo"
    for name in (*ROWS, "b/2.wav"):
        (tmp_path / "speech" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / f"digits__{name[2]}.wav", tmp_path / "speech" / name)
    lines = ["\t".join((name, *values)) for name, values in ROWS.items()]
    (tmp_path / "t.tsv").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "speech"


def convert(speech: Path, *columns: str, target: str = "set", **more: bool) -> Report:
    """Convert with these columns."""
    table = speech.parent / "t.tsv"
    return convert_audio(speech, speech.parent / target, options(**more), transcripts=table, columns=columns)


def values(target: Path, *names: str) -> dict[str, tuple[str, ...]]:
    """Fields of each clip by its key."""
    data_set = BrandDataset(target, fields=("key", *names))
    return {key: tuple(found) for key, *found in (data_set[index] for index in range(len(data_set)))}


def test_columns_become_fields_of_text(speech: Path) -> None:
    """In the order in which they are named; empty where the table does not say anything of a clip."""
    report = convert(speech, "speaker", "lang")
    target = speech.parent / "set"
    assert list(BrandDataset(target).schema.items()) == [
        ("audio", "audio"),
        ("label", "int"),
        ("duration", "float"),
        ("text", "str"),
        ("speaker", "str"),
        ("lang", "str"),
        ("key", "str"),
    ]
    told = {key: (row[0], row[1], row[3]) for key, row in ROWS.items()} | {"b/2.wav": ("", "", "")}
    assert values(target, "text", "lang", "speaker") == told
    assert "The columns speaker name, label of t.tsv are not read" in report.notes
    assert not [error for step in verify(target) for error in step.errors]
    unpack(target, speech.parent / "back")
    assert files_below(speech.parent / "back") == files_below(speech)


def test_columns_that_are_left_are_told(speech: Path) -> None:
    """With what takes them; without the option a data set is as it always was."""
    report = convert(speech)
    assert list(report.notes) == [NAMED, "1 audio file without a transcript; the text is empty there"]
    assert "lang" not in BrandDataset(speech.parent / "set").schema
    (speech.parent / "t.tsv").write_text(
        "".join(f"{line.split(chr(9))[0]}\t{line.split(chr(9))[1]}\n" for line in (HEAD, *table_lines(speech)))
    )
    assert "t.tsv" not in " ".join(convert(speech, target="plain").notes)
    assert tree_digest(speech.parent / "set" / "chunks") == tree_digest(speech.parent / "plain" / "chunks")


def table_lines(speech: Path) -> list[str]:
    """Rows of the table."""
    return (speech.parent / "t.tsv").read_text(encoding="utf-8").splitlines()[1:]


def test_one_column_that_is_left(speech: Path) -> None:
    """One is no plural."""
    (speech.parent / "t.tsv").write_text("path\ttext\tlang\na/1.wav\tuno\tit\n")
    assert convert(speech).notes[0] == "The column lang of t.tsv is not read; --columns lang adds it"


def test_columns_stay_with_their_clips_where_others_are_left_out(speech: Path) -> None:
    """A clip that cannot be used takes its row along."""
    (speech / "a" / "1.wav").write_bytes(b"RIFF\0\0\0\0WAVEno sound" + bytes(100))
    report = convert(speech, "lang", "speaker", skip_errors=True)
    assert [problem.path for problem in report.skipped] == ["a/1.wav"]
    told = {key: (row[0], row[1], row[3]) for key, row in ROWS.items() if key != "a/1.wav"} | {"b/2.wav": ("", "", "")}
    assert values(speech.parent / "set", "text", "lang", "speaker") == told


def test_the_bytes_do_not_depend_on_the_number_of_processes(speech: Path) -> None:
    """Workers map the same columns."""
    convert(speech, "lang")
    table = speech.parent / "t.tsv"
    convert_audio(speech, speech.parent / "other", options(jobs=3), transcripts=table, columns=["lang"])
    assert tree_digest(speech.parent / "set") == tree_digest(speech.parent / "other")


def test_other_columns_are_another_data_set(speech: Path) -> None:
    """What was begun with some columns does not go on with others."""
    assert convert(speech, "lang").samples == convert(speech, "speaker", target="other").samples == 4
    assert StoredDataSet(speech.parent / "set").id != StoredDataSet(speech.parent / "other").id


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["language"], "has no such column; it has path, text, lang, speaker name, speaker, label"),
        (["label"], "every sample has a field of this name; rename the column"),
        (["text"], "every sample has a field of this name"),
        (["speaker name"], "field name 'speaker name': use letters, digits"),
        (["lang", "lang"], "occurs twice"),
        ("lang", r"give a tuple of names, \('lang',\)"),
    ],
)
def test_columns_that_cannot_be_taken(speech: Path, columns: list[str], says: str) -> None:
    """The message says what there is; nothing is left behind."""
    with pytest.raises((UsageError, SchemaError), match=says):
        convert_audio(speech, speech.parent / "set", options(), transcripts=speech.parent / "t.tsv", columns=columns)
    assert not (speech.parent / "set").exists()


def test_columns_need_a_table_that_names_them(speech: Path) -> None:
    """Neither a folder without a table nor a table without a head has columns."""
    with pytest.raises(UsageError, match="give the table with --transcripts"):
        convert_audio(speech, speech.parent / "set", options(), columns=["lang"])
    (speech.parent / "t.tsv").write_text("a/1.wav\tuno\n")
    with pytest.raises(UsageError, match="its first row does not name its columns"):
        convert(speech, "lang")


def test_the_verb_takes_columns(speech: Path) -> None:
    """Separated by commas; `brand cat` shows them."""
    table, target = speech.parent / "t.tsv", speech.parent / "set"
    told = brand("convert", "audio", speech, target, "--transcripts", table, "--columns", "lang, speaker")
    assert (told.code, "not read" in told.out) == (0, True)
    assert "  speaker  Carlo" in brand("cat", target, 0).out
    assert brand("convert", "audio", speech, speech.parent / "b", "--columns", "lang").code == 2
