"""The sources of the import tests, written by the writers of the tools themselves: how are they made again?

    python -m tests.chunker.sources.make tars      where mosaicml-streaming, litdata and webdataset are installed
    python -m tests.chunker.sources.make tables    where datasets is installed

Pictures are of Fashion-MNIST, texts are transcripts of clips; both are in `examples/data`, which has their licences.
`samples.json` has what every reader must find: the values, and for pictures and bytes their SHA-256. The files were
written by mosaicml-streaming 0.13.0, litdata 0.2.76, webdataset 1.0.2, pyarrow 26.0.1 and datasets 5.2.0.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[2] / "examples" / "data"
COUNT = 12


def samples() -> list[dict[str, Any]]:
    """Twelve samples of a picture, a label, a text, a number, an array and an object."""
    rows = (DATA / "clips" / "transcripts.tsv").read_text(encoding="utf-8").splitlines()[1:]
    with zipfile.ZipFile(DATA / "fashion-mnist-small.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith("train/") and name.endswith(".png")]
        names = names[:: len(names) // COUNT][:COUNT]
        pictures = [archive.read(name) for name in names]
    made = []
    for number, (name, picture) in enumerate(zip(names, pictures, strict=True)):
        path, text = rows[3 * number].split("\t")
        made.append(
            {
                "key": name.removesuffix(".png").replace(".", "_"),
                "image": picture,
                "label": number % 5,
                "text": text,
                "score": number / 8,
                "vector": np.arange(number, number + 6, dtype=np.float32).reshape(2, 3),
                "tokens": np.arange(1 + number % 3, dtype=np.int64),
                "facts": {"clip": path, "more": [number, None]},
            }
        )
    return made


def plain(value: Any) -> Any:
    """A value as JSON; bytes by their digest."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return value.tolist() if isinstance(value, np.ndarray) else value


def write_webdataset(folder: Path) -> None:
    """Three tar files; the second is packed."""
    webdataset = import_module("webdataset")
    with webdataset.ShardWriter(f"{folder}/part-%03d.tar", maxcount=5, verbose=0) as writer:
        for sample in samples():
            writer.write(
                {
                    "__key__": sample["key"],
                    "png": sample["image"],
                    "cls": sample["label"],
                    "txt": sample["text"],
                    "score.txt": str(sample["score"]),
                    "vector.npy": sample["vector"],
                    "json": sample["facts"],
                }
            )


def write_mds(folder: Path, compression: str | None) -> None:
    """Small shards."""
    from bench.mosaicml import load_streaming

    columns = {
        "key": "str",
        "image": "bytes",
        "label": "int",
        "small": "int8",
        "text": "str",
        "score": "float32",
        "vector": "ndarray:float32:2,3",
        "tokens": "ndarray",
        "facts": "json",
    }
    writer_class = load_streaming().MDSWriter
    with writer_class(out=str(folder), columns=columns, compression=compression, size_limit=4000) as writer:
        for sample in samples():
            writer.write(sample | {"small": np.int8(-sample["label"]), "score": np.float32(sample["score"])})


def write_litdata(folder: Path, compression: str | None) -> None:
    """Chunks of five samples."""
    import torch

    writer_class = import_module("litdata.streaming.writer").BinaryWriter

    level = None if compression is None else "chunk"
    writer = writer_class(str(folder), chunk_size=5, compression=compression, compression_level=level)
    for number, sample in enumerate(samples()):
        writer[number] = {
            "key": sample["key"],
            "image": sample["image"],
            "label": sample["label"],
            "even": sample["label"] % 2 == 0,
            "text": sample["text"],
            "score": sample["score"],
            "vector": sample["vector"],
            "tensor": torch.from_numpy(sample["vector"]),
            "tokens": torch.from_numpy(sample["tokens"]),
        }
    writer.done()
    writer.merge()


def write_litdata_rows(folder: Path) -> None:
    """Plain rows, which LitData stores as Arrow."""
    writer = import_module("litdata.streaming.writer").BinaryWriter(str(folder), chunk_size=5)
    for number, sample in enumerate(samples()):
        writer[number] = {name: sample[name] for name in ("key", "image", "label", "text", "score", "facts")}
    writer.done()
    writer.merge()


def table(*, files: bool) -> Any:
    """The samples as a `Dataset` of Hugging Face."""
    import datasets

    features = datasets.Features(
        {
            "key": datasets.Value("string"),
            "image": datasets.Image() if files else datasets.Value("binary"),
            "label": datasets.ClassLabel(names=["top", "trouser", "pullover", "dress", "coat"]),
            "text": datasets.Value("string"),
            "score": datasets.Value("float32"),
            "vector": datasets.Array2D((2, 3), "float32"),
            "tokens": datasets.List(datasets.Value("int64")),
            "facts": {"clip": datasets.Value("string"), "more": datasets.List(datasets.Value("int64"))},
        }
    )
    rows = [s | {"image": {"bytes": s["image"], "path": None}} if files else s for s in samples()]
    rows = [row | {"vector": row["vector"].tolist(), "tokens": row["tokens"].tolist()} for row in rows]
    return datasets.Dataset.from_list(rows, features=features)


def fresh(name: str) -> Path:
    """An empty folder beside this file."""
    shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / name).mkdir()
    return HERE / name


def main() -> None:
    """Write one half of them."""
    if sys.argv[1] == "tars":
        write_webdataset(fresh("webdataset"))
        write_litdata_rows(fresh("litdata-rows"))
        for compression in (None, "zstd"):
            write_mds(fresh("mds" if compression is None else "mds-zstd"), compression)
            write_litdata(fresh("litdata" if compression is None else "litdata-zstd"), compression)
        return
    told = [{name: plain(value) for name, value in sample.items()} for sample in samples()]
    (HERE / "samples.json").write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    folder, rows = fresh("parquet"), table(files=True)
    for number in range(2):
        half = rows.select(range(6 * number, 6 * number + 6))
        half.to_parquet(folder / f"train-{number:05d}-of-00002.parquet")
    rows.save_to_disk(fresh("hf"), num_shards=2)


if __name__ == "__main__":
    main()
