"""A conversion in parts has the bytes of one process, whichever machine makes which part, when, and how often."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brand.chunker import Options, convert_audio, convert_images
from brand.chunker.distributed import Job, Task, plan_audio, plan_images, run, run_task, seal
from brand.chunker.tasks.running import MAX_TASKS, by_task, missing
from brand.errors import InterruptedConversionError, SourceError, TargetExistsError, UsageError
from tests.support import LIMIT_S, Outcome, brand, options, running_brand, tree_digest, wait_until

PLAIN = Options(chunk_size=8, jobs=1)


def part(source: Path, target: Path, which: str, *more: object) -> Outcome:
    """`brand convert images SOURCE TARGET --task WHICH`."""
    return brand("convert", "images", source, target, "--chunk-size", 8, "-j", 1, "--task", which, *more)


@pytest.fixture(scope="module")
def whole(fashion: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """600 pictures in 75 chunks, made by one process."""
    target = tmp_path_factory.mktemp("whole") / "set"
    convert_images(fashion / "test", target, PLAIN)
    return tree_digest(target)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("jobs", [1, 2])
def test_parts_one_after_the_other_have_the_bytes_of_one_process(
    fashion: Path, tmp_path: Path, whole: dict[str, str], count: int, jobs: int
) -> None:
    """In any order; every file is the same, and nothing else lies there."""
    target = tmp_path / "set"
    for number in sorted(range(count), key=lambda number: (number * 5 + 3) % 7):
        told = part(fashion / "test", target, f"{number}/{count}", "-j", jobs)
        assert told.code == 0, told.err
    assert "All chunks are there" in told.out
    assert brand("seal", target).code == 0
    assert tree_digest(target) == whole


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 7])
def test_parts_at_the_same_time_have_the_bytes_of_one_process(
    fashion: Path, tmp_path: Path, whole: dict[str, str], count: int
) -> None:
    """Processes that begin together: one lists the folder, the others wait for the plan. Each part is made twice."""
    target, reports = tmp_path / "set", []
    command = ["convert", "images", fashion / "test", target, "--chunk-size", 8, "-j", 2, "--json"]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(running_brand(*command, "--task", f"{number}/{count}"))
            for number in (*range(count), *range(count))
        ]
        for process in started:
            out, err = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, err
            reports.append(json.loads(out))
    assert sum(report["chunks"] for report in reports) == 2 * 75
    assert brand("seal", target).code == 0
    assert tree_digest(target) == whole


LOCKS_DO_NOTHING = "import fcntl; fcntl.flock = lambda *_: None; from brand.cli.main import main; main()"


@pytest.mark.slow
def test_where_locks_do_nothing_between_machines_the_bytes_are_the_same(
    fashion: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    """As on a cluster file system with local locks: several processes plan at the same time, and one plan stays."""
    target, at_once = tmp_path / "set", 4
    command = [sys.executable, "-c", LOCKS_DO_NOTHING, "convert", "images", str(fashion / "test"), str(target)]
    started = [
        subprocess.Popen(
            [*command, "--chunk-size", "8", "-j", "1", "--task", f"{number}/{at_once}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(at_once)
    ]
    for process in started:
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err
    left = [name for name in os.listdir(target / ".brand-work") if name.startswith("planning-")]
    assert left == []
    seal(target)
    assert tree_digest(target) == whole


@pytest.mark.slow
def test_clips_with_transcripts_and_companions_come_in_parts(clips: Path, tmp_path: Path) -> None:
    """A table inside of the source, columns, an empty folder, a file that is left out: `extras.zip`, `skipped.tsv`."""
    source = tmp_path / "speech"
    shutil.copytree(clips, source)
    (source / "nobody").mkdir()
    (source / "broken.wav").write_bytes(b"RIFF and no more")
    some = Options(chunk_size=5, labels=False, skip_errors=True, jobs=1)
    more: dict[str, Any] = {"transcripts": source / "transcripts.tsv"}
    plain = convert_audio(source, tmp_path / "whole", some, **more)
    for number in range(3):
        job = plan_audio(source, tmp_path / "set", some, tasks=3, **more)
        run_task(job, Task(number, 3), jobs=1)
    sealed = seal(tmp_path / "set")
    assert tree_digest(tmp_path / "set") == tree_digest(tmp_path / "whole")
    assert {"extras.zip", "skipped.tsv"} <= set(tree_digest(tmp_path / "set"))
    assert (sealed.skipped, sealed.notes, sealed.samples) == (plain.skipped, plain.notes, plain.samples)


@pytest.mark.slow
def test_clips_with_texts_beside_them_come_in_parts(clips: Path, tmp_path: Path) -> None:
    """A text that changes after the plan was made is another source."""
    source = tmp_path / "speech"
    shutil.copytree(clips, source, ignore=shutil.ignore_patterns("*.tsv"))
    told = sorted(source.rglob("*.ogg")) or sorted(source.rglob("*.wav")) or sorted(source.rglob("*.flac"))
    for clip in told:
        clip.with_suffix(".txt").write_text(f"this is {clip.stem}\n")
    some = options(5)
    convert_audio(source, tmp_path / "whole", some)
    run_task(plan_audio(source, tmp_path / "set", some), Task(0, 2), jobs=1)
    run_task(plan_audio(source, tmp_path / "set", some), Task(1, 2), jobs=1)
    told[0].with_suffix(".txt").write_text("this is another text\n")
    with pytest.raises(TargetExistsError, match="transcripts have changed"):
        plan_audio(source, tmp_path / "set", some)
    seal(tmp_path / "set")
    assert tree_digest(tmp_path / "set") == tree_digest(tmp_path / "whole")


@pytest.mark.slow
def test_threads_of_one_process_make_chunks_side_by_side(fashion: Path, tmp_path: Path, whole: dict[str, str]) -> None:
    """As the workers of Dask do; each chunk twice, also compressed, where a compressor is no matter for two threads."""
    for compression, mode in (("none", "auto"), ("zstd", "zstd")):
        some = Options(chunk_size=8, compression=mode, jobs=1)  # type: ignore[arg-type]
        convert_images(fashion / "test", tmp_path / compression, some)
        job = plan_images(fashion / "test", tmp_path / f"{compression}-set", some)
        with ThreadPoolExecutor(4) as threads:
            made = list(threads.map(partial(run, job), [number // 2 for number in range(2 * job.chunks)]))
        assert sum(chunk.samples for chunk in made) == 1200
        seal(job.target)
        assert tree_digest(tmp_path / f"{compression}-set") == tree_digest(tmp_path / compression)


def test_a_part_that_runs_again_finds_its_chunks(fashion: Path, tmp_path: Path) -> None:
    """It changes no file."""
    target = tmp_path / "set"
    first = part(fashion / "test", target, "1/3", "--json")
    before = {path: path.stat().st_mtime_ns for path in (target / "chunks").iterdir()}
    again = part(fashion / "test", target, "1/3", "--json")
    assert (first.json["chunks"], first.json["chunks_found"]) == (25, 0)
    assert (again.json["chunks"], again.json["chunks_found"]) == (25, 25)
    assert {path: path.stat().st_mtime_ns for path in (target / "chunks").iterdir()} == before
    assert again.json["chunks_missing"] == 50


@pytest.mark.slow
def test_the_source_is_listed_once(fashion: Path, tmp_path: Path) -> None:
    """A part that finds a plan does not look into the source's folders: one without files does for it."""
    source, target = tmp_path / "source", tmp_path / "set"
    shutil.copytree(fashion / "test", source)
    assert part(source, target, "0/2").code == 0
    (source / "0_t_shirt_top" / "new.png").write_bytes(b"a file that the plan does not know")
    assert part(source, target, "1/2").code == 0
    assert seal(target).samples == 600


def test_a_file_that_was_written_anew_is_named(fashion: Path, tmp_path: Path) -> None:
    """With as many bytes, so that only its date tells; and the part goes on once it is as it was."""
    source, target = tmp_path / "source", tmp_path / "set"
    shutil.copytree(fashion / "test", source)
    assert part(source, target, "0/2").code == 0
    victims = sorted(source.rglob("*.png"))
    before = [path.stat().st_mtime_ns for path in victims]
    for path in victims:
        os.utime(path, ns=(1, 1))
    told = part(source, target, "1/2")
    assert told.code == 1
    assert "the file changed while it was being converted" in told.err
    for path, when in zip(victims, before, strict=True):
        os.utime(path, ns=(when, when))
    assert part(source, target, "1/2").code == 0


def test_a_file_that_cannot_be_used_is_named_with_what_helps(photos: Path, tmp_path: Path) -> None:
    """As in a conversion in one process; nothing is planned, and the target is not taken."""
    source, target = tmp_path / "source", tmp_path / "set"
    shutil.copytree(photos, source)
    (source / "tools" / "notes.txt").write_text("taken in 2019")
    told = part(source, target, "0/2")
    assert told.code == 1
    assert "tools/notes.txt" in told.err
    assert "--on-error skip leaves such files out" in told.err
    (source / "tools" / "notes.txt").unlink()
    convert_images(source, target, PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--seed", 1], "--seed is 1, and was 0"),
        (["--chunk-size", 16], "--chunk-size is 16, and was 8"),
        (["--compression", "zstd"], "--compression is zstd, and was auto"),
        (["--no-labels"], "--no-labels is given, and was not given"),
        (["--on-error", "skip"], "--on-error skip is given, and was not given and --validate is given"),
    ],
)
def test_other_options_are_refused_by_name(fashion: Path, tmp_path: Path, more: list[object], named: str) -> None:
    """Exit code 2, and the plan stays as it is."""
    target = tmp_path / "set"
    assert part(fashion / "test", target, "0/2").code == 0
    told = part(fashion / "test", target, "1/2", *more)
    assert told.code == 2
    assert named in told.err
    assert "Give all tasks the same options" in told.err
    assert part(fashion / "test", target, "1/2").code == 0


@pytest.mark.parametrize(("what", "other"), [("zstandard", "0.1 with zstd 1.0.0"), ("Brand", "0.0.1")])
def test_other_versions_are_refused_and_both_are_named(fashion: Path, tmp_path: Path, what: str, other: str) -> None:
    """For a part, for a chunk that an engine asks for, and for a conversion in one process."""
    target = tmp_path / "set"
    job = plan_images(fashion / "test", target, PLAIN)
    claim = target / ".brand-work" / "plan" / "plan.json"
    facts = json.loads(claim.read_bytes())
    here = facts["made_with"][what]
    facts["made_with"][what] = other
    claim.write_text(json.dumps(facts))
    for told in (part(fashion / "test", target, "0/2"), brand("convert", "images", fashion / "test", target)):
        assert told.code == 2
        assert f"{what} {other}" in told.err
        assert f"{what} {here}" in told.err
    with pytest.raises(TargetExistsError, match="Use the same versions"):
        run(job, 0)


@pytest.mark.slow
def test_a_conversion_in_one_process_is_claimed_with_versions_too(fashion: Path, tmp_path: Path) -> None:
    """One that was stopped does not go on with another zstandard."""
    target = tmp_path / "set"
    plan_images(fashion / "test", target, PLAIN)
    work = target / ".brand-work"
    claim = json.loads((work / "plan" / "plan.json").read_bytes())
    shutil.rmtree(work / "plan")
    (work / "plan.json").write_text(json.dumps(claim | {"made_with": {"Brand": "0.0.1"}}))
    with pytest.raises(TargetExistsError, match=r"begun with Brand 0\.0\.1\. Installed are Brand"):
        convert_images(fashion / "test", target, PLAIN)
    (work / "plan.json").write_text(json.dumps(claim))
    convert_images(fashion / "test", target, PLAIN)


@pytest.mark.slow
def test_a_conversion_in_one_process_finishes_what_parts_have_begun(
    fashion: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    """With the same options; with others it is refused. And the other way round."""
    target = tmp_path / "set"
    assert part(fashion / "test", target, "1/3").code == 0
    with pytest.raises(TargetExistsError, match="another source or with other options"):
        convert_images(fashion / "test", target, Options(seed=1, chunk_size=8, jobs=1))
    assert convert_images(fashion / "test", target, PLAIN).chunks_found == 25
    assert tree_digest(target) == whole
    (target / "brand.json").unlink()
    (target / ".brand-work").mkdir()
    report = part(fashion / "test", target, "0/1", "--json").json
    assert (report["chunks_found"], report["chunks_missing"]) == (75, 0)
    seal(target)
    assert tree_digest(target) == whole


def test_another_source_is_refused(fashion: Path, photos: Path, tmp_path: Path) -> None:
    """Its files are not those of the plan: the first of them is named, or missing."""
    target = tmp_path / "set"
    assert part(fashion / "test", target, "0/2").code == 0
    told = part(photos, target, "1/2")
    assert told.code == 1
    assert "cannot be read: No such file or directory" in told.err


@pytest.mark.slow
def test_while_a_part_works_no_other_conversion_begins(fashion: Path, tmp_path: Path) -> None:
    """And while another conversion works, no part does; parts do not mind each other."""
    target = tmp_path / "set"
    assert part(fashion / "test", target, "0/2").code == 0
    with (target / ".brand-work" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        told = brand("convert", "images", fashion / "test", target, "--chunk-size", 8)
        assert told.code == 2
        assert "another conversion is writing there" in told.err
        assert part(fashion / "test", target, "1/2").code == 0
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = part(fashion / "test", target, "1/2")
        assert told.code == 2
        assert "another conversion is writing there" in told.err
    seal(target)


@pytest.mark.slow
def test_a_part_waits_while_another_machine_makes_the_plan(
    fashion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until that has ended, however it ended; and not for ever."""
    target = tmp_path / "set"
    (target / ".brand-work").mkdir(parents=True)
    with (target / ".brand-work" / "planning").open("w") as planning:
        fcntl.flock(planning, fcntl.LOCK_EX)
        monkeypatch.setattr("brand.chunker.tasks.planning.PLAN_WAIT_S", 0.0)
        with pytest.raises(InterruptedConversionError, match="has been planning this conversion"):
            plan_images(fashion / "test", target, PLAIN)
        monkeypatch.undo()
        waits: list[str] = []
        with ThreadPoolExecutor(1) as other:
            planned = other.submit(
                plan_images, fashion / "test", target, PLAIN, on_progress=lambda p: waits.append(p.stage)
            )
            wait_until(lambda: "wait" in waits, "it waits")
            fcntl.flock(planning, fcntl.LOCK_UN)
            assert planned.result(LIMIT_S).chunks == 75
    assert waits[0] == "wait"
    assert waits[-1] == "scan"


@pytest.mark.slow
def test_a_part_that_waited_for_the_plan_does_not_list_the_source(fashion: Path, tmp_path: Path) -> None:
    """It loads what the other machine has published."""
    target, other = tmp_path / "set", tmp_path / "other"
    plan_images(fashion / "test", other, PLAIN)
    work = target / ".brand-work"
    work.mkdir(parents=True)
    with (work / "planning").open("w") as planning, ThreadPoolExecutor(1) as waiting:
        fcntl.flock(planning, fcntl.LOCK_EX)
        stages: list[str] = []
        planned = waiting.submit(
            plan_images, fashion / "test", target, PLAIN, on_progress=lambda p: stages.append(p.stage)
        )
        wait_until(lambda: bool(stages), "it waits")
        shutil.copytree(other / ".brand-work" / "plan", work / "plan")
        fcntl.flock(planning, fcntl.LOCK_UN)
        assert planned.result(LIMIT_S).chunks == 75
    assert set(stages) == {"wait"}


@pytest.mark.slow
def test_a_plan_that_was_removed_or_replaced_is_noticed(fashion: Path, tmp_path: Path) -> None:
    """A process that still has the old job makes no chunk of it; a sealed data set has its chunks."""
    target = tmp_path / "set"
    job = plan_images(fashion / "test", target, PLAIN)
    run(job, 0)
    shutil.rmtree(target)
    with pytest.raises(InterruptedConversionError, match="the plan of this conversion is missing"):
        run(job, 1)
    other = plan_images(fashion / "test", target, Options(seed=3, chunk_size=8))
    with pytest.raises(InterruptedConversionError, match="is missing or was replaced"):
        run(job, 1)
    for number in range(other.chunks):
        run(other, number)
    seal(target)
    assert run(other, 5).found
    with pytest.raises(InterruptedConversionError):
        run(job, 1)
    with pytest.raises(UsageError, match="has chunks 0 to 74"):
        run(other, 75)
    with pytest.raises(TargetExistsError, match="is a finished data set already"):
        plan_images(fashion / "test", target, PLAIN)


def test_a_damaged_plan_is_refused(fashion: Path, tmp_path: Path) -> None:
    """Its checksum tells, and the message says what to do."""
    target = tmp_path / "set"
    plan_images(fashion / "test", target, PLAIN)
    path = target / ".brand-work" / "plan" / "job.json"
    path.write_text(path.read_text().replace('"raw_bytes": ', '"raw_bytes": 1'))
    told = part(fashion / "test", target, "0/2")
    assert told.code == 1
    assert "checksum of the plan" in told.err
    assert "to start again" in told.err


def test_a_lost_list_of_files_is_noticed(fashion: Path, tmp_path: Path) -> None:
    """The list is compared with the plan before a chunk is made of it."""
    target = tmp_path / "set"
    plan_images(fashion / "test", target, PLAIN)
    path = target / ".brand-work" / "plan" / "entries.bin"
    damaged = bytearray(path.read_bytes())
    damaged[20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(TargetExistsError, match="another source"):
        plan_images(fashion / "test", target, PLAIN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "as 0/8 for the first of eight"),
        ("-1/8", "as 0/8 for the first of eight"),
        ("8/8", "tasks are counted from 0, so they are 0/8 to 7/8"),
        ("0/0", "1 to 100,000 tasks"),
        ("1/999999", "1 to 100,000 tasks"),
        ("a/b", "as 0/8 for the first of eight"),
    ],
)
def test_a_wrong_part_is_wrong_use(fashion: Path, tmp_path: Path, text: str, message: str) -> None:
    """The message says how parts are counted; nothing is written."""
    told = part(fashion / "test", tmp_path / "set", text)
    assert told.code == 2
    assert message in told.err
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dry-run"], "leave out the division into tasks"),
        (["--engine", "ray"], "give one of the two"),
        (["--address", "10.0.0.1:6379"], "--address is for --engine ray"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_use(
    fashion: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    """Nothing is written."""
    told = part(fashion / "test", tmp_path / "set", "0/2", *more)
    assert told.code == 2
    assert message in told.err
    assert not (tmp_path / "set").exists()


def test_parts_of_a_store_are_refused_with_the_way_there(fashion: Path) -> None:
    """Convert into a folder, and copy."""
    told = brand("convert", "images", fashion / "test", "s3://bucket/set", "--task", "0/2")
    assert told.code == 2
    assert "`brand copy FOLDER s3://bucket/set`" in told.err


def test_more_parts_than_chunks_leave_some_empty(photos: Path, tmp_path: Path) -> None:
    """31 pictures in four chunks, for six machines: two have nothing to do, and say so."""
    told = [part(photos, tmp_path / "set", f"{number}/6").out for number in range(6)]
    assert sum("is empty: the data set has only 4 chunks" in out for out in told) == 2
    assert seal(tmp_path / "set").chunks == 4


@pytest.mark.parametrize("count", [1, 4, 9, 75])
@pytest.mark.parametrize("parts", [1, 2, 7, 80, MAX_TASKS])
def test_each_chunk_is_in_one_part_and_its_part_is_found(count: int, parts: int) -> None:
    """Parts are consecutive, and of equal size but for one chunk."""
    some = [Task(number, parts).chunks(count) for number in range(min(parts, 200))]
    numbers = [number for chunks in some for number in chunks]
    assert numbers == list(range(len(numbers)))
    if parts <= 200:
        assert len(numbers) == count
        assert max(map(len, some)) - min(map(len, some)) <= 1
    for number, of in (
        (number, Task.parse(text)) for text, found in by_task(range(count), count, parts).items() for number in found
    ):
        assert number in of.chunks(count)


def test_a_job_says_what_is_missing(photos: Path, tmp_path: Path) -> None:
    """By the names that are there; temporary files do not count."""
    job = plan_images(photos, tmp_path / "set", PLAIN)
    assert isinstance(job, Job)
    run(job, 2)
    (tmp_path / "set" / "chunks" / "00000001.brand.tmp").write_bytes(b"")
    assert missing(tmp_path / "set", job.chunks) == [0, 1, 3]


def test_a_source_error_in_a_part_leaves_no_temporary_file(photos: Path, tmp_path: Path) -> None:
    """The file that disappeared is named."""
    source = tmp_path / "source"
    shutil.copytree(photos, source)
    job = plan_images(source, tmp_path / "set", PLAIN)
    for path in [path for path in source.rglob("*") if path.is_file()]:
        path.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        run(job, 1)
    assert list((tmp_path / "set" / ".brand-work").glob("*.tmp")) == []
