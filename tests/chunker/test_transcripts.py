"""Each clip gets its own text, from a table or from a file beside it; what does not fit is said with its line."""

from __future__ import annotations

import codecs
import shutil
from pathlib import Path

import pytest

from brand.chunker import Report, convert_audio
from brand.errors import SourceError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.unpack import unpack
from tests.support import brand, files_below, options

SPEAKER = "it_IT_m_Carlo"


@pytest.fixture
def folder(clips: Path, tmp_path: Path) -> Path:
    """Three real clips of one speaker in `speech/a`, one of another in `speech/b`."""
    (tmp_path / "speech" / "a").mkdir(parents=True)
    (tmp_path / "speech" / "b").mkdir()
    for name in ("digits__1.wav", "digits__2.wav", "digits__3.wav"):
        shutil.copy(clips / SPEAKER / name, tmp_path / "speech" / "a")
    shutil.copy(clips / "fr_CA_f_June" / "digits__1.wav", tmp_path / "speech" / "b" / "un.wav")
    return tmp_path / "speech"


def texts(target: Path) -> dict[str, str]:
    """Text of each clip."""
    stored = StoredDataSet(target)
    samples = [stored.sample(index) for index in range(len(stored))]
    return {sample["key"]: sample["text"] for sample in samples}


def convert(folder: Path, table: str | bytes | None, name: str = "t.tsv") -> dict[str, str]:
    """Convert with a table of these contents; returns the texts."""
    path = None
    if table is not None:
        path = folder.parent / name
        path.write_bytes(table if isinstance(table, bytes) else table.encode())
    target = folder.parent / "out.brand"
    convert_audio(folder, target, options(), transcripts=path)
    return texts(target)


ALL = {"a/digits__1.wav": "uno", "a/digits__2.wav": "due", "a/digits__3.wav": "tre", "b/un.wav": 'un, "un"'}


def test_the_shipped_table_gives_each_clip_its_text(clips: Path, clips_set: Path) -> None:
    """36 real transcripts in six languages; the clips that the table does not name have an empty text."""
    rows = (clips / "transcripts.tsv").read_text(encoding="utf-8").splitlines()[1:]
    told = dict(row.split("\t") for row in rows)
    found = texts(clips_set)
    assert {key: text for key, text in found.items() if text} == told
    assert len(told) == 36
    assert len(found) == 41


def test_a_tsv_with_a_head_may_have_other_columns(folder: Path) -> None:
    """The columns are found by their names, in any order and case; quotes are plain characters in a TSV."""
    rows = "".join(f"{n}\t{text}\t{key}\n" for n, (key, text) in enumerate(ALL.items()))
    assert convert(folder, "n\tSentence\tPATH\n" + rows) == ALL


def test_a_tsv_without_a_head_has_two_columns(folder: Path) -> None:
    """Path first, then text."""
    assert convert(folder, "".join(f"{key}\t{text}\n" for key, text in ALL.items())) == ALL


def test_a_csv_may_quote(folder: Path) -> None:
    """Quotes, commas and line breaks inside a field are as CSV has them."""
    rows = ["file_name,transcription", *(f"{k},{v}" for k, v in ALL.items() if k[0] == "a"), 'b/un.wav,"un, ""un"""']
    assert convert(folder, "\r\n".join(rows), "t.csv") == ALL
    lines = 'path,text\na/digits__1.wav,"line one\nline two"\n'
    shutil.rmtree(folder.parent / "out.brand")
    assert convert(folder, lines, "t.csv")["a/digits__1.wav"] == "line one\nline two"


def test_a_csv_without_a_head_has_two_columns(folder: Path) -> None:
    """As a TSV without one."""
    found = convert(folder, "a/digits__1.wav,uno\nb/un.wav,un\n", "t.csv")
    assert found == {"a/digits__1.wav": "uno", "a/digits__2.wav": "", "a/digits__3.wav": "", "b/un.wav": "un"}


def test_a_byte_order_mark_is_no_part_of_the_first_name(folder: Path) -> None:
    """Tables that Excel wrote begin with one."""
    rows = "path\ttext\n" + "".join(f"{key}\t{text}\n" for key, text in ALL.items())
    assert convert(folder, codecs.BOM_UTF8 + rows.encode()) == ALL


def test_paths_may_be_absolute_or_begin_with_a_dot(folder: Path) -> None:
    """`/data/speech/a/1.wav` and `./a/1.wav` are the clip `a/1.wav` of /data/speech."""
    rows = f"{folder.resolve()}/a/digits__1.wav\tuno\n./a/digits__2.wav\tdue\n"
    found = convert(folder, rows)
    assert found["a/digits__1.wav"] == "uno"
    assert found["a/digits__2.wav"] == "due"


def test_absolute_paths_may_go_through_the_link_by_which_the_folder_was_named(folder: Path) -> None:
    """A source named by a symbolic link: the table says the same path as the command."""
    link = folder.parent / "link"
    link.symlink_to(folder)
    table = folder.parent / "t.tsv"
    table.write_text(f"{link}/a/digits__1.wav\tuno\n")
    convert_audio(link, folder.parent / "out.brand", options(), transcripts=table)
    assert texts(folder.parent / "out.brand")["a/digits__1.wav"] == "uno"


def test_empty_lines_and_spaces_around_do_not_count(folder: Path) -> None:
    """Blank rows are passed over; a text is stripped."""
    found = convert(folder, "path\ttext\n\na/digits__1.wav\t  uno \n\n")
    assert found["a/digits__1.wav"] == "uno"


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("path\ttext\na/digits__1.wav\tuno\na/nowhere.wav\tx\n", r"line 3.*a/nowhere\.wav"),
        ("path\ttext\na/digits__1.wav\tuno\na/digits__1.wav\tdue\n", r"line 3.*digits__1\.wav.*second time"),
        ("path\ttext\na/digits__1.wav\t\na/digits__1.wav\tdue\n", r"line 3.*digits__1\.wav.*second time"),
        ("a/nowhere.wav\tx\n", r"line 1.*a/nowhere\.wav"),
    ],
)
def test_a_row_of_no_clip_or_of_a_clip_twice_is_a_source_error(folder: Path, table: str, named: str) -> None:
    """Nothing is guessed: the message names table, line and clip."""
    with pytest.raises(SourceError, match=named):
        convert(folder, table)


def test_a_name_without_folder_and_suffix_is_that_of_one_file(folder: Path) -> None:
    """As in transcripts.txt of Multilingual LibriSpeech; two files of that name are not guessed between."""
    assert convert(folder, "digits__1\tuno\nun\tun\n") == {
        "a/digits__1.wav": "uno", "a/digits__2.wav": "", "a/digits__3.wav": "", "b/un.wav": "un",
    }  # fmt: skip
    shutil.rmtree(folder.parent / "out.brand")
    shutil.copy(folder / "a/digits__1.wav", folder / "b")
    with pytest.raises(SourceError, match=r"line 1.*there is no audio file 'digits__1'"):
        convert(folder, "digits__1\tuno\nun\tun\n")


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("a\tb\tc\n1\t2\t3\n", "column of paths"),
        ("path\tspeaker\tage\n", "one of texts"),
        ("", "found nothing"),
        ("path\ttext\na/digits__1.wav\n", "line 2.*1 cell,"),
        (b"path\ttext\na/digits__1.wav\t" + b"\xff\xfe\n", "UTF-8"),
    ],
)
def test_a_table_without_the_columns_is_wrong_use(folder: Path, table: str | bytes, named: str) -> None:
    """The message says which columns are looked for and what was found."""
    with pytest.raises(UsageError, match=named):
        convert(folder, table)


def test_quotes_in_a_tsv_belong_to_the_text(folder: Path) -> None:
    """As Common Voice writes them; the report counts them, and a form that is named is obeyed."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.wav"))[:2]
    (folder / "t.tsv").write_text(f'path\ttext\n{names[0]}\t"Hello" she said\n{names[1]}\t"all of it"\n')
    told = brand("convert", "audio", folder, folder.parent / "set", "--transcripts", folder / "t.tsv", "-j", 1)
    assert told.code == 0, told.err
    stored = StoredDataSet(folder.parent / "set")
    texts = {sample["key"]: sample["text"] for sample in map(stored.sample, range(len(stored)))}
    assert [texts[name] for name in names] == ['"Hello" she said', '"all of it"']
    assert "1 row has cells in quotes, and the quotes are kept: --quote double removes them" in told.out
    (folder / "t.tsv").write_text(f'path\ttext\n{names[1]}\t"all of it"\n')
    more = ("--transcripts", folder / "t.tsv", "--quote", "double", "-j", 1)
    assert brand("convert", "audio", folder, folder.parent / "two", *more).code == 0
    stored = StoredDataSet(folder.parent / "two")
    assert [s["text"] for s in map(stored.sample, range(len(stored))) if s["key"] == names[1]] == ["all of it"]


def test_a_tab_in_a_text_is_no_end_of_it(folder: Path) -> None:
    """A row with more cells than the header is refused, and names its line."""
    name = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.wav"))[0]
    with pytest.raises(UsageError, match="line 2: it has 3 cells, and the header has 2 columns"):
        convert(folder, f"path\ttext\n{name}\tone\ttwo\n")


def test_the_form_of_a_table_needs_a_table(folder: Path) -> None:
    told = brand("convert", "audio", folder, folder.parent / "set", "--quote", "double")
    assert (told.code, "give the table with --transcripts" in told.err) == (2, True)


def test_a_missing_table_is_wrong_use(folder: Path) -> None:
    """It is named."""
    with pytest.raises(UsageError, match=r"missing\.tsv"):
        convert_audio(folder, folder.parent / "out", options(), transcripts=folder / "missing.tsv")


def test_a_folder_for_a_table_is_wrong_use(folder: Path) -> None:
    """`--transcripts` wants a file."""
    with pytest.raises(UsageError, match="speech"):
        convert_audio(folder, folder.parent / "out", options(), transcripts=folder)


def test_clips_without_a_row_are_counted(folder: Path) -> None:
    """They are converted, with an empty text, and the report says how many."""
    (folder.parent / "t.tsv").write_text("a/digits__1.wav\tuno\n")
    report = convert_audio(folder, folder.parent / "out", options(), transcripts=folder.parent / "t.tsv")
    assert report.samples == 4
    assert any(note.startswith("3 audio files without a transcript") for note in report.notes)


def sidecars(folder: Path, contents: dict[str, str | bytes]) -> None:
    """Write files beside the clips."""
    for name, text in contents.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def converted(folder: Path) -> Report:
    """Convert without a table."""
    return convert_audio(folder, folder.parent / "out.brand", options())


def test_a_text_beside_a_clip_is_its_transcript(folder: Path) -> None:
    """`clip.txt` or `clip.lab`, the former where there are both; clips without one have an empty text."""
    sidecars(folder, {"a/digits__1.txt": "uno\n", "a/digits__2.lab": "due", "b/un.txt": "\ufeffun"})
    sidecars(folder, {"a/digits__1.lab": "not this one"})
    report = converted(folder)
    assert report.samples == 4
    assert report.skipped == ()
    assert texts(folder.parent / "out.brand") == {
        "a/digits__1.wav": "uno",
        "a/digits__2.wav": "due",
        "a/digits__3.wav": "",
        "b/un.wav": "un",
    }


def test_sidecars_are_given_back_bit_for_bit(folder: Path) -> None:
    """What was stripped for the text is in the unpacked file."""
    sidecars(folder, {"a/digits__1.txt": "  uno \r\n", "b/un.lab": b"\xef\xbb\xbfun"})
    converted(folder)
    unpack(folder.parent / "out.brand", folder.parent / "back")
    assert files_below(folder.parent / "back") == files_below(folder)


def test_both_sidecars_of_a_clip_are_given_back(folder: Path) -> None:
    """`clip.lab` beside `clip.txt` is not the transcript, and still belongs to the folder."""
    sidecars(folder, {"a/digits__1.txt": "uno", "a/digits__1.lab": "UNO"})
    converted(folder)
    unpack(folder.parent / "out.brand", folder.parent / "back")
    assert files_below(folder.parent / "back") == files_below(folder)


def test_a_text_beside_no_clip_is_a_problem(folder: Path) -> None:
    """A `.txt` without its clip is no sample and is not dropped in silence."""
    sidecars(folder, {"a/notes.txt": "nobody's transcript"})
    with pytest.raises(SourceError, match=r"a/notes\.txt"):
        converted(folder)


def test_clips_of_one_stem_share_their_sidecar(folder: Path, clips: Path) -> None:
    """`one.wav` and `one.ogg` beside one `one.txt`: both have its text, and it is given back once."""
    shutil.copy(next((clips / "zh_TW_ChuLo").glob("*.ogg")), folder / "a" / "digits__1.ogg")
    sidecars(folder, {"a/digits__1.txt": "uno"})
    converted(folder)
    found = texts(folder.parent / "out.brand")
    assert found["a/digits__1.ogg"] == found["a/digits__1.wav"] == "uno"
    unpack(folder.parent / "out.brand", folder.parent / "back")
    assert files_below(folder.parent / "back") == files_below(folder)


def test_a_sidecar_that_is_not_utf_8_is_a_source_error(folder: Path) -> None:
    """It is named; it is not decoded by guess."""
    sidecars(folder, {"a/digits__1.txt": b"\xff\xfe\x00"})
    with pytest.raises(SourceError, match=r"a/digits__1\.txt.*UTF-8"):
        converted(folder)


def test_the_table_inside_the_folder_is_given_back(clips: Path, clips_set: Path, tmp_path: Path) -> None:
    """transcripts.tsv lies beside the class folders: it is no sample, and `unpack` lays it down again."""
    unpack(clips_set, tmp_path / "back")
    assert files_below(tmp_path / "back") == files_below(clips)


@pytest.fixture
def chapters(clips: Path, tmp_path: Path) -> Path:
    """Three real clips as LibriSpeech lays them out: speaker, chapter, and a table of texts in each chapter."""
    root = tmp_path / "LibriSpeech" / "readers"
    for number, (chapter, text) in enumerate((("19/198", "UNO"), ("19/198", "DUE ANCHE"), ("26/495", "TRE")), 1):
        folder = root / chapter
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{chapter.replace('/', '-')}-000{number}"
        shutil.copy(clips / SPEAKER / f"digits__{number}.wav", folder / f"{stem}.wav")
        with (folder / f"{chapter.replace('/', '-')}.trans.txt").open("a", encoding="utf-8") as table:
            table.write(f"{stem} {text}\n")
    return root.parent


def test_texts_of_a_chapter_are_read_as_librispeech_has_them(chapters: Path, tmp_path: Path) -> None:
    """One table in each folder, which `unpack` restores; the tables are no samples."""
    report = convert_audio(chapters, tmp_path / "out.brand", options(labels=False))
    assert report.skipped == ()
    assert report.notes == ()
    assert texts(tmp_path / "out.brand") == {
        "readers/19/198/19-198-0001.wav": "UNO",
        "readers/19/198/19-198-0002.wav": "DUE ANCHE",
        "readers/26/495/26-495-0003.wav": "TRE",
    }
    unpack(tmp_path / "out.brand", tmp_path / "back")
    assert files_below(tmp_path / "back") == files_below(chapters)


def test_skipping_does_not_lose_the_texts_of_a_chapter(chapters: Path, tmp_path: Path) -> None:
    """Nor do several processes, or the files of the corpus that are no audio."""
    (chapters / "SPEAKERS.TXT").write_text("19 | F | readers | 1.0 | A reader\n")
    with pytest.raises(
        SourceError, match=r"SPEAKERS\.TXT.*--transcripts names it.*--on-error skip leaves such files out"
    ):
        convert_audio(chapters, tmp_path / "refused.brand", options(labels=False))
    report = convert_audio(chapters, tmp_path / "out.brand", options(labels=False, skip_errors=True, jobs=2))
    assert [problem.path for problem in report.skipped] == ["SPEAKERS.TXT"]
    assert sorted(texts(tmp_path / "out.brand").values()) == ["DUE ANCHE", "TRE", "UNO"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("19-198-0009 NEUN\n", r"19-198\.trans\.txt, line 3: the audio file '19-198-0009' is not next to the table"),
        ("19-198-0001 EINS\n", r"19-198\.trans\.txt, line 3: the audio file '19-198-0001' is named a second time"),
    ],
)
def test_a_line_of_a_chapter_that_fits_no_file_is_told(more: str, says: str, chapters: Path, tmp_path: Path) -> None:
    with (chapters / "readers/19/198/19-198.trans.txt").open("a") as table:
        table.write(more)
    with pytest.raises(SourceError, match=says):
        convert_audio(chapters, tmp_path / "out.brand", options(labels=False))
    report = convert_audio(chapters, tmp_path / "out.brand", options(labels=False, skip_errors=True))
    assert report.samples == 3
    assert len(report.skipped) == 1


def test_audio_without_a_line_of_the_chapter_is_counted(chapters: Path, tmp_path: Path) -> None:
    """And a chapter's table that is not UTF-8 is named."""
    table = chapters / "readers/19/198/19-198.trans.txt"
    table.write_text(table.read_text().splitlines()[0])
    report = convert_audio(chapters, tmp_path / "out.brand", options(labels=False))
    assert [fact.text for fact in report.noticed] == ["1 audio file has no text next to it: the text is empty there"]
    table.write_bytes(b"\xff\xfe1\0")
    with pytest.raises(SourceError, match=r"19-198\.trans\.txt: not a table of transcripts in UTF-8"):
        convert_audio(chapters, tmp_path / "other.brand", options(labels=False))


def test_a_split_of_librispeech_has_the_texts_of_its_chapters(chapters: Path, tmp_path: Path) -> None:
    """The folder of the corpus, and the split by its name: the tables of other splits are not read."""
    (chapters / "readers").rename(chapters / "dev-clean")
    shutil.copytree(chapters / "dev-clean", chapters / "test-other")
    with pytest.raises(UsageError, match="--split dev-clean, --split test-other"):
        convert_audio(chapters, tmp_path / "no.brand", options(labels=False))
    convert_audio(chapters, tmp_path / "out.brand", options(labels=False, split="dev-clean"))
    assert sorted(texts(tmp_path / "out.brand").values()) == ["DUE ANCHE", "TRE", "UNO"]
