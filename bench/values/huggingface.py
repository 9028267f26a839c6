"""Data sets of Hugging Face: does Brand yield the samples of the library datasets?"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import datasets
import numpy as np
from PIL import Image

import brand
from bench.values import media
from bench.values.compare import WHOLE, Case, Sample

TOOL: Final = "datasets"
IMAGE_SAID: Final = "grey|palette|16 bits|32 bits|floating|transparency|CMYK|turned by EXIF"
"""The words that say that an image decodes in another form than the one of its file."""
_UNCHANGED: Final = {"image": brand.DecodeImage(mode="unchanged", upright=True)}


def cases(root: Path) -> Iterator[Case]:
    """Yield the cases; their sources are made below `root`."""
    datasets.disable_progress_bars()
    datasets.disable_caching()
    yield from _folders(root / "folders")
    yield from _tables_of_features(root / "features")
    yield from _packed(root / "packed")
    yield from _texts(root / "texts")


def read_folder(src: Path, split: str = "train", **options: Any) -> Callable[[], Sequence[Sample]]:
    """Return a function that loads a folder of images, with its keys."""

    def read() -> list[Sample]:
        rows = datasets.load_dataset(
            options.pop("form", "imagefolder"),
            data_dir=str(src),
            split=split,
            cache_dir=str(src.parent / "cache"),
            **options,
        )
        bare = rows.cast_column("image", datasets.Image(decode=False))
        keys = [str(Path(path).relative_to(src)) for path in (row["image"]["path"] for row in bare)]
        return [{**row, "key": key} for row, key in zip(rows, keys, strict=True)]

    return read


def _eight_bits(src: Path) -> Callable[[], Sequence[Sample]]:
    """Return the samples with the bits of a channel, which neither Pillow nor Brand keeps."""
    return lambda: [{**row, "bits": 10} for row in read_folder(src)()]


def _as_arrays(read: Callable[[], Sequence[Sample]]) -> Callable[[], Sequence[Sample]]:
    return lambda: [{**row, "image": np.asarray(row["image"])} for row in read()]


def _folders(root: Path) -> Iterator[Case]:
    files = media.image_files()
    deep_color = {f"{name}/10-bits.png": base64.b64decode(media.TEN_BITS_AVIF) for name in "ab"}
    yield Case(
        TOOL,
        "imagefolder, AVIF of 10 bits",
        _eight_bits(media.write(root / "avif", deep_color)),
        ["images", str(root / "avif")],
        said={"bits": "10 or 12 bits a channel"},
    )
    halves = {f"{('cats', 'dogs')[n % 2]}/{name}": data for n, (name, data) in enumerate(files.items())}
    plain = media.write(root / "plain", halves)
    said = {"image": IMAGE_SAID, "code": "column 'code' is text"}
    yield Case(TOOL, "imagefolder", read_folder(plain), ["images", str(plain)], said=said, by="key")
    yield Case(
        TOOL,
        "imagefolder, mode='unchanged', upright=True",
        _as_arrays(read_folder(plain)),
        ["images", str(plain)],
        decode=_UNCHANGED,
        by="key",
        said={"image": "palette"},
    )
    plainer = {name: data for name, data in files.items() if name[0] in "acf" and "A" not in name}
    split = media.write(root / "split", {f"{s}/x/{n}": d for s in ("train", "test") for n, d in plainer.items()})
    media.write(split, {f"{s}/y/{s}.jpg": media.encoded(media.pixels(), "JPEG") for s in ("train", "test")})
    yield Case(
        TOOL,
        "imagefolder, split",
        _split(split, "test"),
        ["images", str(split), "--split", "test"],
        said=said,
        by="key",
    )
    deep = media.write(
        root / "deep", {f"{n % 2}/{'ab'[n % 3 == 0]}/{name}": d for n, (name, d) in enumerate(plainer.items())}
    )
    yield Case(
        TOOL,
        "imagefolder, two levels",
        read_folder(deep),
        ["images", str(deep)],
        said={**said, "label": "below (its|their) class folder"},
        by="key",
    )
    yield Case(
        TOOL,
        "imagefolder, two levels, --leaf-classes",
        read_folder(deep),
        ["images", str(deep), "--leaf-classes"],
        said=said,
        by="key",
    )
    flat = dict(plainer)
    rows = [
        {"file_name": name, "text": f'a "{n}", b', "score": n / 4, "n": n, "code": f"0{n}"}
        for n, name in enumerate(flat)
    ]
    for form, text in (("csv", _csv(rows)), ("jsonl", "".join(json.dumps(row) + "\n" for row in rows))):
        folder = media.write(root / form, {**flat, f"metadata.{form}": text.encode()})
        yield Case(
            TOOL, f"imagefolder, metadata.{form}", read_folder(folder), ["images", str(folder)], said=said, by="key"
        )
    below = media.write(
        root / "below", {**{f"train/{n}": d for n, d in flat.items()}, "train/metadata.csv": _csv(rows).encode()}
    )
    yield Case(
        TOOL,
        "imagefolder, train/metadata.csv",
        _split(below, "train"),
        ["images", str(below / "train")],
        said=said,
        by="key",
    )
    objects = [{**row, "objects": {"bbox": [[1.0, 2.0, 3.0, 4.5]], "category": [2]}} for row in rows]
    folder = media.write(
        root / "objects", {**flat, "metadata.jsonl": "".join(json.dumps(o) + "\n" for o in objects).encode()}
    )
    yield Case(
        TOOL,
        "imagefolder, metadata.jsonl with boxes",
        read_folder(folder),
        ["images", str(folder)],
        said=said,
        by="key",
    )
    sounds = {f"{('no', 'yes')[n % 2]}/{n}.wav": _wav(n) for n in range(6)}
    audio = media.write(root / "audio", sounds)
    yield Case(TOOL, "audiofolder", _audio(audio), ["audio", str(audio)], decode=False, by="key")


def _split(src: Path, split: str) -> Callable[[], Sequence[Sample]]:
    read = read_folder(src, split)
    return lambda: [{**row, "key": str(Path(row["key"]).relative_to(split))} for row in read()]


def _audio(src: Path) -> Callable[[], Sequence[Sample]]:
    def read() -> list[Sample]:
        rows = datasets.load_dataset(
            "audiofolder", data_dir=str(src), split="train", cache_dir=str(src.parent / "cache")
        )
        bare = rows.cast_column("audio", datasets.Audio(decode=False))
        return [
            {
                "audio": Path(row["audio"]["path"]).read_bytes(),
                "label": row["label"],
                "key": _below(src, row["audio"]["path"]),
            }
            for row in bare
        ]

    return read


def _below(src: Path, path: str) -> str:
    return str(Path(path).relative_to(src))


def _csv(rows: Sequence[Sample]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _wav(seed: int) -> bytes:
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, media.wave(0.1, 16_000, 1, seed), 16_000, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def _picture(data: bytes, name: str) -> Sample:
    return {"bytes": data, "path": name}


def _rows() -> list[Sample]:
    """Return rows with a value of each feature."""
    files = media.image_files()
    names = [name for name in files if name not in ("e-float.tif", "e-int32.tif", "d-16.png")]
    rows: list[Sample] = []
    for n, name in enumerate(names):
        rows.append(
            {
                "image": _picture(files[name], name),
                "rgb": _picture(files[name], name),
                "grey": _picture(files[name], name),
                "audio": {"bytes": _wav(n), "path": f"{n}.wav"},
                "label": n % 3,
                "fine_label": n % 4,
                "tags": [n % 4, 3][: n % 3],
                "pages": [_picture(files[each], each) for each in names[n : n + n % 4]],
                "small": n - 128 if n < 2 else n,
                "wide": 2**62 + n,
                "half": n / 8,
                "single": n / 3,
                "flag": n % 2 == 0,
                "text": "" if n == 1 else f"été {n}",
                "tokens": list(range(n)),
                "matrix": [[n, 1], [2, 3]],
                "strings": ["a", ""][: n % 3],
                "boxes": {"bbox": [[0.5, 1.0, n, 2.0]] * (n % 3), "category": [n % 4] * (n % 3)},
                "person": {"name": f"P{n}", "age": n, "of": {"city": "Ulm"}},
                "translation": {"de": f"Haus {n}", "en": f"house {n}"},
                "turns": [{"role": "user", "content": f"hi {n}"}] * (n % 3),
            }
        )
    return rows


def _features() -> Any:
    value, names = datasets.Value, ["top", "bag", "coat", "boot"]
    return datasets.Features(
        {
            "image": datasets.Image(),
            "rgb": datasets.Image(mode="RGB"),
            "grey": datasets.Image(mode="L"),
            "audio": datasets.Audio(decode=False),
            "label": datasets.ClassLabel(names=names[:3]),
            "fine_label": datasets.ClassLabel(names=names),
            "tags": datasets.Sequence(datasets.ClassLabel(names=names)),
            "pages": datasets.List(datasets.Image()),
            "small": value("int8"),
            "wide": value("int64"),
            "half": value("float16"),
            "single": value("float32"),
            "flag": value("bool"),
            "text": value("string"),
            "tokens": datasets.List(value("uint16")),
            "matrix": datasets.Array2D((2, 2), "int32"),
            "strings": datasets.List(value("string")),
            "boxes": {
                "bbox": datasets.List(datasets.List(value("float32"))),
                "category": datasets.List(datasets.ClassLabel(names=names)),
            },
            "person": {"name": value("string"), "age": value("int32"), "of": {"city": value("string")}},
            "translation": datasets.Translation(languages=["de", "en"]),
            "turns": [{"role": value("string"), "content": value("string")}],
        }
    )


_SAID: Final = {"image": IMAGE_SAID, "pages": IMAGE_SAID}


def _bare(rows: Any) -> list[Sample]:
    """Return the rows of a `Dataset`, with the bytes of the audio files."""
    return [{**row, **({"audio": row["audio"]["bytes"]} if "audio" in row else {})} for row in rows]


def _decoded(rows: Any) -> Callable[[], list[Sample]]:
    return lambda: _bare(rows)


def _pictures(rows: Any) -> Callable[[], list[Sample]]:
    return lambda: [{name: value for name, value in row.items() if name != "audio"} for row in rows]


def _audio_bytes(rows: Any) -> Callable[[], list[Sample]]:
    return lambda: [{"audio": row["audio"]["bytes"], "label": row["label"]} for row in rows]


def _tables_of_features(root: Path) -> Iterator[Case]:
    root.mkdir(parents=True)
    rows = datasets.Dataset.from_list(_rows(), features=_features())
    (root / "parquet").mkdir()
    rows.to_parquet(root / "parquet/train-00000-of-00001.parquet", batch_size=100)
    saved = rows.remove_columns("translation")  # datasets itself cannot save it
    saved.save_to_disk(root / "saved")
    for form, kind in (("parquet", "parquet"), ("parquet", "hf"), ("saved", "hf")):
        src = str(root / form)
        name = f"every feature, {'save_to_disk' if form == 'saved' else f'Parquet by convert {kind}'}"
        some = saved if form == "saved" else rows
        yield Case(TOOL, name, _pictures(some), [kind, src], said=_SAID)
        yield Case(
            TOOL, name + ", bytes of audio", _audio_bytes(rows), [kind, src, "--columns", "audio,label"], decode=False
        )
    nulls = datasets.Dataset.from_list(
        [{"n": 1, "x": 0.5, "s": "a"}, {"n": None, "x": None, "s": None}, {"n": 3, "x": float("nan"), "s": ""}]
    )
    (root / "nulls").mkdir()
    nulls.to_parquet(root / "nulls/a.parquet")
    src = str(root / "nulls")
    yield Case(TOOL, "missing values", lambda: list(nulls), ["parquet", src], said={WHOLE: "--null n=VALUE"})
    options = ["--null", "n=-1", "--null", "x=nan", "--null", "s="]
    yield Case(
        TOOL,
        "missing values, with --null",
        lambda: [{"n": 1, "x": 0.5, "s": "a"}, {"n": -1, "x": math.nan, "s": ""}, {"n": 3, "x": math.nan, "s": ""}],
        ["parquet", src, *options],
    )
    hidden = datasets.Dataset.from_dict(
        {"x": [1, 2], "label": [-1, -1]},
        datasets.Features({"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["a", "b"])}),
    )
    (root / "hidden").mkdir()
    hidden.to_parquet(root / "hidden/test-00000-of-00001.parquet")
    yield Case(TOOL, "labels of an unlabelled split, -1", lambda: list(hidden), ["hf", str(root / "hidden")])


def _pack(samples: Any, *schema: Any) -> Callable[[str], Any]:
    return lambda target: brand.pack(samples, target, *schema)


def _packed(root: Path) -> Iterator[Case]:
    root.mkdir(parents=True)
    rows = datasets.Dataset.from_list(_rows(), features=_features())
    some = rows.remove_columns("audio")
    yield Case(TOOL, "pack(Dataset)", _decoded(some), pack=_pack(some), said=_SAID)
    for name, view in {
        "select": some.select([5, 3, 3, 11]),
        "filter": some.filter(lambda row: row["small"] % 2 == 0, input_columns=None),
        "shuffle": some.shuffle(seed=3),
        "sort": some.sort("small", reverse=True),
        "shard": some.shard(3, 1),
        "train_test_split": some.train_test_split(test_size=5, seed=1)["test"],
        "rename_column, select_columns": some.rename_column("text", "caption").select_columns(["caption", "image"]),
        "concatenate_datasets": datasets.concatenate_datasets([some.select([2, 1]), some.select([9])]),
        "with_format('torch')": some.with_format("torch"),
        "cast_column(Image(mode='RGB'))": some.cast_column("image", datasets.Image(mode="RGB")),
    }.items():
        theirs = view.with_format(None)
        yield Case(TOOL, f"pack(Dataset.{name})", _decoded(theirs), pack=_pack(view), said=_SAID)
    small = some.select_columns(["small", "label"])
    made = small.with_transform(_transform)
    schema = {"small": "int", "double": "int"}
    yield Case(TOOL, "pack(Dataset.with_transform)", _decoded(made), pack=_pack(made, schema))
    mapped = some.select_columns(["image", "small"]).map(_flipped)
    yield Case(TOOL, "pack(Dataset.map) that flips images", _decoded(mapped), pack=_pack(mapped), said=_SAID)
    stream = some.to_iterable_dataset(num_shards=3)
    for name, view in {
        "to_iterable_dataset": stream,
        "skip, take": stream.skip(2).take(9),
        "shuffle": stream.shuffle(seed=1, buffer_size=8),
        "select_columns": stream.select_columns(["image", "label"]),
        "decode(False), filter": stream.decode(enable=False).filter(_even),
    }.items():
        theirs = some.filter(_even) if "filter" in name else view
        yield Case(TOOL, f"pack(stream.{name})", _decoded(theirs), pack=_pack(view), said=_SAID)
    doubled = (
        some.select_columns(["small", "text"])
        .to_iterable_dataset()
        .map(
            _transformed,
            features=datasets.Features(
                {"small": datasets.Value("int8"), "text": datasets.Value("string"), "double": datasets.Value("int64")}
            ),
        )
    )
    yield Case(TOOL, "pack(stream.map)", _decoded(doubled), pack=_pack(doubled))
    src = root / "files"
    src.mkdir()
    rows.to_parquet(src / "train-00000-of-00001.parquet", batch_size=100)
    streamed = datasets.load_dataset(
        "parquet", data_dir=str(src), split="train", streaming=True, cache_dir=str(root / "cache")
    )
    yield Case(TOOL, "pack(load_dataset('parquet', streaming=True))", _pictures(rows), pack=_pack(streamed), said=_SAID)
    fewer = streamed.remove_columns("audio")
    yield Case(
        TOOL,
        "pack(load_dataset(streaming=True).remove_columns)",
        _decoded(fewer),
        pack=_pack(fewer),
        said={WHOLE: r"call decode\(False\) before"},
    )
    fewer = streamed.decode(enable=False).remove_columns("audio")
    yield Case(
        TOOL,
        "pack(load_dataset(streaming=True).decode(False).remove_columns)",
        _decoded(some),
        pack=_pack(fewer),
        said=_SAID,
    )
    folder = media.write(
        root / "folder", {f"{'ab'[n % 2]}/{name}": d for n, (name, d) in enumerate(media.image_files().items())}
    )
    for streaming in (False, True):
        loaded = datasets.load_dataset(
            "imagefolder", data_dir=str(folder), split="train", streaming=streaming, cache_dir=str(root / "cache")
        )
        name = f"pack(load_dataset('imagefolder', streaming={streaming}))"
        yield Case(TOOL, name, _decoded(loaded), pack=_pack(loaded), said=_SAID)


def _transform(rows: Any) -> dict[str, Any]:
    return {"small": rows["small"], "double": [2 * each for each in rows["small"]]}


def _transformed(row: Any) -> dict[str, Any]:
    return {**row, "double": 2 * row["small"]}


def _flipped(row: Any) -> dict[str, Any]:
    return {"image": row["image"].convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT), "small": row["small"]}


def _even(row: Any) -> bool:
    return bool(row["small"] % 2 == 0)


def _texts(root: Path) -> Iterator[Case]:
    lines = [{"text": f'say "{n}"\n, then', "n": n, "x": n / 4, "flag": n % 2 == 0} for n in range(8)]
    table = media.write(root / "csv", {"data.csv": _csv(lines).encode()})
    yield Case(TOOL, "csv", read_loaded("csv", table), ["csv", str(table)], said={"flag": "True.*text|text.*True"})
    nested = [
        {**line, "tags": ["a"] * (n % 3), "of": {"k": n, "z": None}, "ids": [n, 2]} for n, line in enumerate(lines)
    ]
    jsonl = media.write(root / "jsonl", {"data.jsonl": "".join(json.dumps(line) + "\n" for line in nested).encode()})
    yield Case(TOOL, "json lines", read_loaded("json", jsonl), ["jsonl", str(jsonl)])
    array = media.write(root / "json", {"data.json": json.dumps(nested).encode()})
    yield Case(TOOL, "json array", read_loaded("json", array), ["jsonl", str(array)])


def read_loaded(form: str, src: Path) -> Callable[[], Sequence[Sample]]:
    """Return a function that loads the files of a format in a folder."""
    return lambda: list(
        datasets.load_dataset(form, data_dir=str(src), split="train", cache_dir=str(src.parent / "cache"))
    )
