"""Train a small captioner on COCO's captions: each pair of an image and one of its captions comes once an epoch.

    python examples/data/published.py data coco
    python examples/train_captions.py data/coco captions.brand

An image is stored once, with all its captions: five, and some images have more.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import brand


class Captions:
    """The images of one split, each with a list of captions."""

    def __init__(self, root: Path, split: str) -> None:
        table = json.loads((root / f"annotations/captions_{split}.json").read_text("utf-8"))
        self.folder, self.images = root / split, table["images"]
        self.captions: dict[int, list[str]] = {image["id"]: [] for image in self.images}
        for one in table["annotations"]:
            self.captions[one["image_id"]].append(one["caption"])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> dict[str, Any]:
        name, captions = self.images[i]["file_name"], self.captions[self.images[i]["id"]]
        return {"key": name, "image": (self.folder / name).read_bytes(), "captions": captions}


def collate(samples: list[Any]) -> tuple[Any, ...]:
    """Return what identifies each pair, the images, and the captions as UTF-8, padded with 0."""
    keys, images, texts = zip(*samples, strict=True)
    tokens = pad_sequence([torch.tensor([1, *text.encode()]) for text in texts], batch_first=True)
    return list(zip(keys, texts, strict=True)), torch.stack([torch.from_numpy(image) for image in images]), tokens


class Captioner(nn.Module):
    """A GRU that starts with the image and predicts each byte from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.tokens = nn.Linear(32 * 32 * 3, 64), nn.Embedding(256, 64)
        self.rest, self.out = nn.GRU(64, 64, batch_first=True), nn.Linear(64, 256)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        hidden, _ = self.rest(self.tokens(tokens[:, :-1]), self.image(images.flatten(1) / 255)[None])
        return nn.functional.cross_entropy(self.out(hidden).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)


if __name__ == "__main__":
    schema = {"key": "str", "image": "image", "captions": "list[str]"}
    brand.pack(Captions(Path(sys.argv[1]), "train2017"), sys.argv[2], schema)
    decode, fields = {"image": brand.DecodeImage(size=(32, 32))}, ("key", "image", "captions")
    ds = brand.BrandDataset(sys.argv[2], expand="captions", fields=fields, decode=decode, memory="1GB")
    loader = brand.BrandLoader(ds, batch_size=16, collate_fn=collate)
    torch.manual_seed(0)
    model = Captioner()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen: list[tuple[str, str]] = []
        total = 0.0
        for found, images, tokens in loader:
            loss = model(images, tokens)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total = [*seen, *found], total + loss.item()
        print(f"epoch {epoch}: {len(seen)} pairs, {len(set(seen))} different, loss {total / len(loader):.1f}")
