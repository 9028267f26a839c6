"""Manifests of speech as their tools write them: each row its own stretch of its recording, and its text."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import zstandard

from brand import BrandDataset, BrandLoader, DecodeAudio, LengthBatchSampler
from brand.chunker import convert_audio
from brand.chunker.distributed import plan_audio
from brand.errors import SourceError, UsageError
from tests.support import Outcome, brand, options, tree_digest
from tests.tools.audiofiles import RATE, mp3, piped_flac, tone, written

WORDS = ("one", "two", "three words here", "four")
STARTS = (0.0, 1.25, 2.5, 3.2)
LENGTHS = (1.0, 1.2, 0.7, 0.8)
WAVE = tone(4)


def long_recording(folder: Path, data: bytes | None = None, name: str = "long.wav") -> Path:
    (folder / "audio").mkdir(exist_ok=True, parents=True)
    path = folder / "audio" / name
    path.write_bytes(written(WAVE, "WAV") if data is None else data)
    return path


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def nemo(folder: Path, name: str = "audio/long.wav", **more: Any) -> Path:
    rows = zip(WORDS, STARTS, LENGTHS, strict=True)
    return lines(
        folder / "manifest.json",
        [{"audio_filepath": name, "offset": o, "duration": d, "text": t, **more} for t, o, d in rows],
    )


def lhotse_recording(name: str, channels: int = 1) -> dict[str, Any]:
    source = {"type": "file", "channels": list(range(channels)), "source": name}
    return {"id": "long", "sources": [source], "sampling_rate": RATE, "num_samples": len(WAVE), "duration": 4.0}


def lhotse_cuts(folder: Path) -> Path:
    rows = [
        {"id": f"cut-{n}", "start": o, "duration": d, "channel": 0, "type": "MonoCut",
         "supervisions": [{"id": f"s{n}", "recording_id": "long", "start": 0.0, "duration": d, "channel": 0, "text": t,
                           "speaker": f"sp{n % 2}"}],
         "recording": lhotse_recording("audio/long.wav")}
        for n, (t, o, d) in enumerate(zip(WORDS, STARTS, LENGTHS, strict=True))
    ]  # fmt: skip
    return lines(folder / "cuts.jsonl.gz", rows)


def lhotse_supervisions(folder: Path) -> Path:
    lines(folder / "x_recordings_train.jsonl.gz", [lhotse_recording("audio/long.wav")])
    rows = [
        {"id": f"cut-{n}", "recording_id": "long", "start": o, "duration": d, "channel": 0, "text": t, "speaker": "a"}
        for n, (t, o, d) in enumerate(zip(WORDS, STARTS, LENGTHS, strict=True))
    ]
    return lines(folder / "x_supervisions_train.jsonl.gz", rows)


def kaldi(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir()
    (data / "wav.scp").write_text("long audio/long.wav\n")
    rows = list(enumerate(zip(WORDS, STARTS, LENGTHS, strict=True)))
    (data / "segments").write_text("".join(f"cut-{n} long {o} {o + d}\n" for n, (_, o, d) in rows))
    (data / "text").write_text("".join(f"cut-{n} {t}\n" for n, (t, _, _) in rows))
    (data / "utt2spk").write_text("".join(f"cut-{n} sp{n}\n" for n, _ in rows))
    return data


SEGMENTS = {"nemo": nemo, "cuts": lhotse_cuts, "supervisions": lhotse_supervisions, "kaldi": kaldi}


def convert(folder: Path, manifest: Path, name: str = "out.brand", **more: Any) -> BrandDataset:
    convert_audio(folder, folder.parent / name, options(**more), transcripts=manifest)
    return BrandDataset(folder.parent / name)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    long_recording(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.parametrize("kind", SEGMENTS)
def test_segments_are_cut_as_the_manifest_lists_them(kind: str, source: Path) -> None:
    """Bit for bit what soundfile reads at that place; in the order of the manifest, with its names."""
    data = convert(source, SEGMENTS[kind](source))
    assert [data[i]["text"] for i in range(4)] == list(WORDS)
    for i, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True)):
        begin, end = round(start * RATE), round((start + length) * RATE)
        expected, rate = soundfile.read(
            source / "audio/long.wav", start=begin, stop=end, dtype="float32", always_2d=True
        )
        wave = data[i]["audio"]
        np.testing.assert_array_equal(wave.samples, expected.T)
        assert wave.rate == rate
        assert data.column("duration")[i] == len(expected) / rate
    keys = [data[i]["key"] for i in range(4)]
    assert keys == (
        [f"cut-{n}" for n in range(4)]
        if kind != "nemo"
        else ["audio/long.wav#0.0", "audio/long.wav#1.25", "audio/long.wav#2.5", "audio/long.wav#3.2"]
    )


@pytest.mark.parametrize(
    ("subtype", "form", "of"),
    [("PCM_24", "WAV", "FLAC"), ("PCM_U8", "WAV", "FLAC"), ("FLOAT", "WAV", "WAV"), ("PCM_32", "WAV", "WAV"),
     ("DOUBLE", "WAV", "WAV"), ("ULAW", "AU", "FLAC"), ("PCM_24", "FLAC", "FLAC"), ("IMA_ADPCM", "WAV", "FLAC")],
)  # fmt: skip
def test_a_cut_changes_no_value(subtype: str, form: str, of: str, tmp_path: Path) -> None:
    """Whatever the coding of a recording without losses."""
    source = tmp_path / "source"
    path = long_recording(source, written(tone(4, channels=2) * 1.9, form, subtype))
    data = convert(source, nemo(source))
    expected, _ = soundfile.read(path, start=20_000, stop=39_200, dtype="float64", always_2d=True)
    raw = BrandDataset(tmp_path / "out.brand", decode=False)[1]["audio"]
    np.testing.assert_array_equal(soundfile.read(io.BytesIO(raw), dtype="float64")[0], expected)
    assert soundfile.info(io.BytesIO(raw)).format == of
    assert len(data) == 4


@pytest.mark.parametrize(
    "contents",
    [
        mp3(4),
        written(WAVE, "OGG"),
        written(tone(2.5), "OGG") + written(tone(1.5), "OGG"),
        piped_flac(written(WAVE, "FLAC")),
    ],
    ids=["mp3", "ogg", "chained ogg", "piped flac"],
)
def test_cuts_of_lossy_and_odd_recordings_are_where_they_belong(contents: bytes, tmp_path: Path) -> None:
    """Also behind the point where libsndfile stops; rounded to 16 bits."""
    source = tmp_path / "source"
    long_recording(source, contents)
    (source / "whole").mkdir()
    data = convert(source, nemo(source))
    lines(source / "whole.json", [{"audio_filepath": "audio/long.wav", "text": ""}])
    whole = convert(source, source / "whole.json", "whole.brand")[0]["audio"].samples[0]
    for i, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True)):
        expected = whole[round(start * RATE) : round((start + length) * RATE)]
        np.testing.assert_allclose(data[i]["audio"].samples[0], expected, atol=1 / 32768)


def test_rounded_segments_are_counted(tmp_path: Path) -> None:
    """In the report and in the data set."""
    source = tmp_path / "source"
    long_recording(source, mp3(4))
    report = convert_audio(source, tmp_path / "out.brand", options(), transcripts=nemo(source))
    assert [fact.text for fact in report.noticed] == [
        "4 segments cut from recordings",
        "4 segments of lossy recordings are rounded to 16 bits",
    ]
    assert "4 segments of lossy recordings are rounded" in brand("info", tmp_path / "out.brand").out


def test_a_row_of_a_whole_file_keeps_its_bytes(source: Path) -> None:
    """Without a stretch, with `null`, or with the length of the file as another tool rounds it."""
    stretches: list[dict[str, Any]] = [
        {}, {"offset": None, "duration": None}, {"offset": 0, "duration": 4.0}, {"offset": 0.0, "duration": 3.96},
        {"duration": 4.03}, {"offset": None, "duration": 4}, {"offset": 0, "duration": "4.0"},
    ]  # fmt: skip
    rows = [{"audio_filepath": "audio/long.wav", "text": str(n), **more} for n, more in enumerate(stretches)]
    convert(source, lines(source / "m.jsonl", rows))
    data = BrandDataset(source.parent / "out.brand", decode=False)
    assert {data[i]["audio"] for i in range(len(rows))} == {(source / "audio/long.wav").read_bytes()}
    assert set(data.column("duration")) == {4.0}
    assert {data[i]["key"] for i in range(len(rows))} == {"audio/long.wav"}


def test_a_duration_that_is_shorter_than_the_file_is_a_stretch(source: Path) -> None:
    """As NeMo reads it: from the begin, that many seconds."""
    data = convert(
        source, lines(source / "m.json", [{"audio_filepath": "audio/long.wav", "duration": 1.5, "text": "a"}])
    )
    assert data.column("duration").tolist() == [1.5]
    assert data[0]["key"] == "audio/long.wav#0.0"


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"offset": 4.5, "duration": 1}, r"the row says 4.5 to 5.5 s, and the recording has 4.000 s"),
    ({"offset": 3, "duration": 2}, r"the row says 3 to 5 s, and the recording has 4.000 s"),
    ({"duration": 20}, r"the row says 0 to 20 s, and the recording has 4.000 s"),
    ({"offset": -1, "duration": 2}, r"offset is -1, and a number of seconds was expected"),
    ({"offset": "one"}, r"offset is 'one'"),
    ({"duration": float("nan")}, r"duration is nan"),
    ({"duration": float("inf")}, r"duration is inf"),
    ({"duration": True}, r"duration is True"),
    ({"duration": [1]}, r"duration is \[1\]"),
    ({"duration": 0}, r"which is no frame"),
    ({"audio_filepath": "audio/no.wav"}, r"there is no such audio file"),
    ({"audio_filepath": ["a.wav", "b.wav"]}, r"audio_filepath is a list, and one path was expected"),
    ({"audio_filepath": "text.json"}, r"cannot decode it"),
    ({"text": 5}, r"text is a int, and a text was expected"),
]


@pytest.mark.parametrize(("row", "says"), BAD_ROWS)
def test_a_row_that_does_not_fit_is_told_with_its_line(row: dict[str, Any], says: str, source: Path) -> None:
    """And `skip` leaves out that row alone."""
    good = {"audio_filepath": "audio/long.wav", "text": "good", "duration": 1}
    (source / "text.json").write_text("{}" * 50)
    manifest = lines(source / "m.json", [good, {**good, **row}, {**good, "offset": 2}])
    with pytest.raises(SourceError, match=rf"m\.json: line 2: .*{says}"):
        convert(source, manifest)
    report = convert_audio(source, source.parent / "out.brand", options(skip_errors=True), transcripts=manifest)
    assert report.samples == 2
    assert [problem.path for problem in report.skipped] == ["m.json, line 2"]


def test_a_segment_may_end_a_little_after_its_recording(source: Path) -> None:
    """As Kaldi permits; its duration is the true one."""
    row = {"audio_filepath": "audio/long.wav", "text": "a", "offset": 3.0, "duration": 1.4}
    data = convert(source, lines(source / "m.json", [row]))
    assert data.column("duration").tolist() == [1.0]
    assert data[0]["audio"].samples.shape[1] == RATE


@pytest.mark.parametrize("text", ["{}\n", '{"audio_filepath": "a.wav"\n', "[1, 2]", '"text"\n', "\n\n"])
def test_lines_that_are_no_rows(text: str, source: Path) -> None:
    (source / "m.json").write_text(text)
    with pytest.raises(SourceError, match=r"m\.json"):
        convert(source, source / "m.json")


def test_a_lhotse_cut_takes_its_channel(tmp_path: Path) -> None:
    """Of a recording with two, the one that it names; a resampled, mixed or downloaded recording is refused."""
    source = tmp_path / "source"
    both = np.concatenate([tone(4), -tone(4) / 2], axis=1)
    long_recording(source, written(both, "WAV"))
    cut = {"id": "a", "start": 1.0, "duration": 1.0, "channel": 1, "type": "MonoCut", "supervisions": [],
           "recording": lhotse_recording("audio/long.wav", 2)}  # fmt: skip
    data = convert(source, lines(source / "cuts.jsonl", [cut]))
    expected = soundfile.read(source / "audio/long.wav", start=RATE, stop=2 * RATE, dtype="float32")[0][:, 1]
    np.testing.assert_array_equal(data[0]["audio"].samples, expected[None])
    recording: dict[str, Any] = cut["recording"]  # type: ignore[assignment]
    for more, says in (
        ({"type": "MixedCut"}, "only MonoCut is read"),
        ({"type": "MultiCut", "channel": [0, 1]}, "only MonoCut is read"),
        ({"channel": 2}, "no file with that channel"),
        ({"recording": {**recording, "transforms": [{"name": "Speed"}]}}, "has transforms"),
        (
            {"recording": {**recording, "sources": [{"type": "command", "channels": [1], "source": "x"}]}},
            "of type 'comm",
        ),
    ):
        with pytest.raises(SourceError, match=says):
            convert(source, lines(source / "bad.jsonl", [{**cut, **more}]), "bad.brand")


def test_supervisions_name_the_recordings_next_to_them(source: Path) -> None:
    manifest = lhotse_supervisions(source)
    (source / "x_recordings_train.jsonl.gz").rename(source / "moved.jsonl.gz")
    with pytest.raises(UsageError, match=r"the recordings .* not next to it: expected 'x_recordings_train\.jsonl\.gz'"):
        convert(source, manifest)
    with pytest.raises(UsageError, match="lists recordings without texts"):
        convert(source, source / "moved.jsonl.gz")


def test_kaldi_without_segments_has_whole_recordings(source: Path) -> None:
    """And commands, unknown recordings and texts without audio are told."""
    folder = kaldi(source)
    (folder / "segments").unlink()
    (folder / "text").write_text("long all of it\n")
    sample = convert(source, folder)[0]
    assert [sample[name] for name in ("key", "text", "duration")] == ["long", "all of it", 4.0]
    (folder / "wav.scp").write_text("long audio/long.wav\nsph sph2pipe -f wav x.sph |\n")
    (folder / "text").write_text("long all of it\nlost a text\n")
    report = convert_audio(source, source.parent / "b.brand", options(skip_errors=True), transcripts=folder)
    assert [(p.path.rpartition(", ")[2], p.reason.partition(":")[0]) for p in report.skipped] == [
        ("sph", "its recording is a command, and a file was expected"),
        ("lost", "there is no such utterance in segments or wav.scp"),
    ]


def test_kaldi_segments_may_end_at_the_end(source: Path) -> None:
    """An end of -1, and fields that are no segment."""
    folder = kaldi(source)
    (folder / "segments").write_text("cut-0 long 3.0 -1\n")
    (folder / "text").write_text("cut-0 one\n")
    assert convert(source, folder).column("duration").tolist() == [1.0]
    for segment, says in (
        ("long 1", "is not a recording"),
        ("long 2 1", "ends at 1 s"),
        ("other 0 1", "no recording 'ot"),
    ):
        (folder / "segments").write_text(f"cut-0 {segment}\n")
        with pytest.raises(SourceError, match=says):
            convert(source, folder, "bad.brand")


def test_columns_of_a_manifest_become_fields(source: Path) -> None:
    """As text, from each kind; those that are not taken are told."""
    manifest = nemo(source, speaker="Ann", tokens=[1, 2], age=31)
    report = convert_audio(
        source, source.parent / "n.brand", options(), transcripts=manifest, columns=["speaker", "tokens"]
    )
    data = BrandDataset(source.parent / "n.brand")
    assert (data[0]["speaker"], data[0]["tokens"]) == ("Ann", "[1, 2]")
    assert "The column age of manifest.json is not read; --columns age adds it" in report.notes
    assert [(fact.count, fact.text) for fact in report.noticed] == [(4, "4 segments cut from recordings")]
    convert_audio(source, source.parent / "c.brand", options(), transcripts=lhotse_cuts(source), columns=["speaker"])
    assert BrandDataset(source.parent / "c.brand")[1]["speaker"] == "sp1"
    convert_audio(source, source.parent / "k.brand", options(), transcripts=kaldi(source), columns=["utt2spk"])
    assert BrandDataset(source.parent / "k.brand")[3]["utt2spk"] == "sp3"
    for name, says in (("nothing", "has no such column; there are speaker, tokens, age"), ("text", "every sample has")):
        with pytest.raises(UsageError, match=says):
            convert_audio(source, source.parent / "x.brand", options(), transcripts=manifest, columns=[name])


def ljspeech(folder: Path) -> tuple[Path, Path]:
    root = folder / "LJSpeech-1.1"
    (root / "wavs").mkdir(parents=True)
    for n in (1, 2, 3):
        (root / "wavs" / f"LJ001-000{n}.wav").write_bytes(written(tone(0.5 * n), "WAV"))
    rows = ['LJ001-0001|"No. 1"|"number one"', "LJ001-0002|2 cats, 1 dog|two cats, one dog", "LJ001-0003|c|c"]
    (root / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return root, root / "metadata.csv"


def test_ljspeech(tmp_path: Path) -> None:
    """Quotes are plain characters; the text is the normalized one, and `transcript` the other."""
    root, table = ljspeech(tmp_path)
    convert_audio(root, tmp_path / "out.brand", options(), transcripts=table, columns=["transcript"])
    data = BrandDataset(tmp_path / "out.brand")
    assert [data[i]["text"] for i in range(3)] == ['"number one"', "two cats, one dog", "c"]
    assert [data[i]["transcript"] for i in range(3)] == ['"No. 1"', "2 cats, 1 dog", "c"]
    assert [data[i]["key"] for i in range(3)] == [f"wavs/LJ001-000{n}.wav" for n in (1, 2, 3)]
    assert data.column("duration").tolist() == [0.5, 1.0, 1.5]
    table.write_text("LJ001-0002|b\nLJ001-0001|a|b|c\n")
    with pytest.raises(SourceError, match="line 2: it has 4 columns, and 2 were expected"):
        convert_audio(root / "wavs", tmp_path / "b.brand", options(), transcripts=table)


def test_a_path_with_two_columns_is_no_ljspeech(tmp_path: Path) -> None:
    """The third column may be a speaker, which would become the text; with one column there is no doubt."""
    root, table = ljspeech(tmp_path)
    table.write_text("wavs/LJ001-0001.wav|a text|speaker 5\n")
    with pytest.raises(UsageError, match="expected a column of paths"):
        convert_audio(root, tmp_path / "no.brand", options(labels=False), transcripts=table)
    table.write_text("wavs/LJ001-0001.wav|a text\r\nwavs/LJ001-0003.wav|\r\n")
    report = convert_audio(root, tmp_path / "out.brand", options(), transcripts=table)
    assert BrandDataset(tmp_path / "out.brand")[0]["text"] == "a text"
    assert "1 row without a text; the text is empty there" in report.notes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.json", '\ufeff{"audio_filepath": "audio/long.wav", "text": "a"}\r\n'),
        ("m.json", '[{"audio_filepath": "audio/long.wav", "text": "a"}]'),
        ("m.ndjson", '\n{"audio": "audio/long.wav", "sentence": " a "}\n\n'),
        ("metadata.jsonl", '{"file_name": "audio/long.wav", "transcription": "a", "duration": null}'),
        ("m.jsonl.zst", '{"audio_filepath": "audio/long.wav", "text": "a"}\n'),
    ],
)
def test_json_as_other_tools_write_it(name: str, text: str, source: Path) -> None:
    """With a byte order mark, as an array, with other names, compressed."""
    data = text.encode()
    (source / name).write_bytes(zstandard.compress(data) if name.endswith(".zst") else data)
    sample = convert(source, source / name)[0]
    assert (sample["text"], sample["key"], sample["duration"]) == ("a", "audio/long.wav", 4.0)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"audio": {"path": "audio/long.wav"}, "text": "a"}, "audio is a dict, and one path was expected"),
        ({"audio_filepath": "audio", "text": "a"}, "there is no such audio file"),
        ({"audio_filepath": "audio/\0.wav", "text": "a"}, "there is no such audio file"),
        ({"id": "a", "recording_id": 5, "start": 0, "duration": 1}, "expected 'x.json'|not next to it"),
        ({"id": "a", "start": 0, "duration": 1, "type": "MonoCut", "features": {}}, "only MonoCut is read"),
        ({"id": "a", "type": "MonoCut", "recording": {"sources": []}}, "it has no 'start'|no file"),
        ({"text": "a"}, "it names no audio file"),
    ],
)
def test_rows_that_are_no_utterances(row: dict[str, Any], says: str, source: Path) -> None:
    with pytest.raises((SourceError, UsageError), match=says):
        convert(source, lines(source / "m.json", [row]))


def test_a_kaldi_file_with_a_name_twice_is_refused(source: Path) -> None:
    """Kaldi wants its files sorted and unique; texts keep their spaces and tabs."""
    folder = kaldi(source)
    (folder / "text").write_text("cut-0\tone  and\tmore \ncut-0 two\n")
    with pytest.raises(SourceError, match=r"text, line 2: 'cut-0' is named a second time"):
        convert(source, folder)
    (folder / "text").write_text("cut-0\tone  and\tmore \n")
    assert convert(source, folder)[0]["text"] == "one  and\tmore"


@pytest.mark.parametrize("below", ["en", "en/clips"])
def test_common_voice_takes_the_rows_of_one_split(below: str, tmp_path: Path) -> None:
    """`clips` has the audio of all splits; quotes are plain characters."""
    clips = tmp_path / "cv" / "en" / "clips"
    clips.mkdir(parents=True)
    for n in range(4):
        (clips / f"common_voice_en_{n}.mp3").write_bytes(mp3(0.5))
    head = "client_id\tpath\tsentence\tup_votes\n"
    train = tmp_path / "cv" / "en" / "train.tsv"
    train.write_text(f'{head}a\tcommon_voice_en_2.mp3\t"Quoted\t2\nb\tcommon_voice_en_0.mp3\tTwo.\t0\n')
    report = convert_audio(
        tmp_path / "cv" / below, tmp_path / "out.brand", options(), transcripts=train, columns=["client_id"]
    )
    data = BrandDataset(tmp_path / "out.brand")
    assert [(data[i]["text"], data[i]["client_id"]) for i in range(len(data))] == [('"Quoted', "a"), ("Two.", "b")]
    assert report.skipped == ()
    assert "The column up_votes of train.tsv is not read; --columns up_votes adds it" in report.notes


def test_a_manifest_is_found_by_its_contents_and_other_tables_are_not(source: Path) -> None:
    """A CSV with `|` in a text, and a TSV of path and text, are tables as before."""
    (source / "t.csv").write_text("audio/long.wav,this | that\n")
    assert convert(source, source / "t.csv", labels=False)[0]["text"] == "this | that"


def test_paths_are_below_the_folder_next_to_the_manifest_or_absolute(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "manifests"
    long_recording(other, name="beside.wav")
    names = ["audio/long.wav", "audio/beside.wav", str(source / "audio/long.wav"), "./audio/long.wav"]
    rows = [{"audio_filepath": name, "text": str(n)} for n, name in enumerate(names)]
    data = convert(source, lines(other / "m.json", rows))
    keys = [data[i]["key"] for i in range(4)]
    assert keys == ["audio/long.wav", "audio/beside.wav", "audio/long.wav", "audio/long.wav"]


def test_processes_and_a_second_run_do_not_change_it(source: Path) -> None:
    """Many shards, in one process and in two: equal bytes."""
    rows = [
        {"audio_filepath": f"audio/{n}.wav", "offset": o / 10, "duration": 0.1, "text": f"{n} {o}"}
        for n in range(20) for o in range(10)
    ]  # fmt: skip
    for n in range(20):
        long_recording(source, written(tone(1.1), "WAV"), f"{n}.wav")
    manifest = lines(source / "m.json", rows)
    for jobs in (1, 2):
        data = convert(source, manifest, f"{jobs}.brand", jobs=jobs)
    assert tree_digest(source.parent / "1.brand") == tree_digest(source.parent / "2.brand")
    assert [data[i]["text"] for i in range(200)] == [row["text"] for row in rows]


def test_the_command_and_append_take_manifests(source: Path) -> None:
    """Tasks and dry runs are refused with the reason."""
    manifest = nemo(source)
    told = brand("convert", "audio", source, source.parent / "out.brand", "-j", 1, "--transcripts", manifest)
    assert told.code == 0
    assert "4 samples are now 1 chunk" in told.out
    assert "4 segments cut from recordings" in told.out
    refused: list[Outcome] = [
        brand("convert", "audio", source, source.parent / "no.brand", "--transcripts", manifest, *more)
        for more in (["--task", "0/2"], ["--dry-run"])
    ]
    assert [each.code for each in refused] == [2, 2]
    assert "is a manifest, whose recordings are read once" in refused[0].err
    for _ in range(2):
        told = brand("append", "audio", source, source.parent / "grown", "-j", 1, "--transcripts", manifest)
    assert "already" in told.err
    with pytest.raises(UsageError, match="is a manifest"):
        plan_audio(source, source.parent / "no.brand", options(), transcripts=manifest)


def test_a_recording_that_changes_is_told(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the listing and the reading."""
    from brand.chunker.importers import utterances

    manifest, found = nemo(source), utterances._found

    def changing(*args: Any) -> Any:
        facts = found(*args)
        (source / "audio/long.wav").write_bytes(written(tone(3.9), "WAV"))
        return facts

    monkeypatch.setattr(utterances, "_found", changing)
    with pytest.raises(SourceError, match=r"long\.wav: the file changed while it was being converted"):
        convert(source, manifest)


@pytest.mark.parametrize("kind", SEGMENTS)
def test_two_epochs_of_training_deliver_each_segment_with_its_text(kind: str, source: Path) -> None:
    """Bucketed by duration, at another rate, a stretch at most."""
    data = convert(source, SEGMENTS[kind](source))
    decode = {"audio": DecodeAudio(rate=8000, seconds=0.75)}
    data = BrandDataset(source.parent / "out.brand", fields=("audio", "text"), decode=decode)
    expected = {text: min(6000, round(length * 8000)) for text, length in zip(WORDS, LENGTHS, strict=True)}
    sampler = LengthBatchSampler(data, "duration", batch_length=2.5, seed=1)
    loader = BrandLoader(data, batch_sampler=sampler, collate_fn=list)
    for epoch in range(2):
        loader.set_epoch(epoch)
        found = {text: len(wave) for batch in loader for wave, text in batch}
        assert found.keys() == expected.keys()
        assert all(abs(found[text] - expected[text]) <= 1 for text in found)


def test_a_recording_that_several_rows_name_whole_is_told(source: Path, tmp_path: Path) -> None:
    """Rows with `start` and `end` in place of offset and duration name the whole recording each; the cure helps."""
    rows: list[dict[str, Any]] = [
        {"audio_filepath": "audio/long.wav", "start": begin, "end": begin + length, "text": text}
        for text, begin, length in zip(WORDS, STARTS, LENGTHS, strict=True)
    ]
    report = convert_audio(source, tmp_path / "set", options(8), transcripts=lines(source / "ends.json", rows))
    (note,) = [note for note in report.notes if "whole" in note]
    assert note == (
        "4 rows name a recording that another row names, too, and hold it whole: offset and duration, in seconds, make"
        " segments"
    )
    for row in rows:
        row["offset"], row["duration"] = row["start"], row["end"] - row["start"]
    report = convert_audio(source, tmp_path / "cut", options(8), transcripts=lines(source / "offsets.json", rows))
    assert [note for note in report.notes if "whole" in note] == []
    assert [round(sample["duration"], 3) for sample in map(BrandDataset(tmp_path / "cut").__getitem__, range(4))] == [
        *LENGTHS
    ]
