"""Pack a table (CSV, TSV or JSONL) into a data set, and read it back in batches of padded text.

    python examples/pack_records.py examples/data/clips/transcripts.tsv texts.brand

Each row becomes a sample; the first row decides the fields. If the target exists already, it is only read.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import brand

CODECS = {bool: "json", int: "int", float: "float", str: "str"}


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table one by one, so that a file of any size takes little memory."""
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            yield from map(json.loads, file)
        else:
            yield from csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")


def collate(samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Pad texts as UTF-8 bytes, and return them with their lengths and the samples' keys."""
    texts = [torch.tensor(list(sample["text"].encode()), dtype=torch.uint8) for sample in samples]
    lengths = torch.tensor([len(text) for text in texts])
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True), lengths, [sample["key"] for sample in samples]


def main() -> None:
    """Pack, unless that is done, then read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="a .csv, .tsv or .jsonl file with a column 'text'")
    parser.add_argument("target", type=Path, help="the data set")
    args = parser.parse_args()

    if not (args.target / "brand.json").exists():
        schema = {name: CODECS.get(type(value), "json") for name, value in next(rows(args.table)).items()}
        brand.pack(rows(args.table), args.target, schema=schema)
    data = brand.BrandDataset(args.target)
    print(data)
    order = torch.Generator().manual_seed(0)
    for texts, lengths, keys in DataLoader(data, batch_size=16, shuffle=True, generator=order, collate_fn=collate):
        print(f"batch {tuple(texts.shape)}, {int(lengths.sum())} bytes of text, samples {', '.join(keys[:4])}, ...")


if __name__ == "__main__":
    main()
