"""Train a small vision-language model on documents with any number of images between their texts.

    python examples/data/published.py data llava cauldron
    brand convert jsonl data/llava/conversations.json llava.brand --field 'image=list[image]' --null 'image=[]'
    python examples/train_documents.py llava.brand image conversations
    brand convert parquet data/cauldron cauldron.brand
    python examples/train_documents.py cauldron.brand images texts

All images of a batch are one tensor. Each takes the place of its `<image>`; texts are UTF-8, a byte a token.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

import brand

IMAGE, END, WIDTH = 256, 257, 64


def text_of(images: list[Any], turns: list[dict[str, str]]) -> str:
    """Return the text of a document, with an `<image>` for each image: in LLaVA's form, or in that of the Cauldron."""
    if "value" in turns[0]:
        return "\n".join(turn["value"] for turn in turns)
    return "<image>" * len(images) + "\n".join(f"{turn['user']}\n{turn['assistant']}" for turn in turns)


def document(sample: Any) -> tuple[str, list[torch.Tensor], torch.Tensor]:
    """Return key, images and tokens of a document."""
    key, images, turns = sample
    first, *others = (list(part.encode()) for part in text_of(images, turns).split("<image>"))
    tokens = first + [token for part in others for token in (IMAGE, *part)]
    return key, [torch.from_numpy(image) for image in images], torch.tensor([*tokens, END])


def collate(samples: list[Any]) -> tuple[Any, ...]:
    """Return keys, all images (count, 32, 32, 3) and padded tokens."""
    keys, images, tokens = zip(*samples, strict=True)
    together = [image for some in images for image in some]
    pixels = torch.stack(together) if together else torch.empty(0, 32, 32, 3)
    return keys, pixels, nn.utils.rnn.pad_sequence(list(tokens), batch_first=True, padding_value=END)


class Model(nn.Module):
    """A GRU over bytes and images."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.image = nn.Embedding(258, WIDTH), nn.Linear(32 * 32 * 3, WIDTH)
        self.rest, self.out = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 258)

    def forward(self, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of each next byte; none of the next image."""
        x = self.tokens(tokens).masked_scatter((tokens == IMAGE)[..., None], self.image(pixels.flatten(1) / 255))
        target = tokens[:, 1:].masked_fill(tokens[:, 1:] == IMAGE, -100)
        return nn.functional.cross_entropy(self.out(self.rest(x[:, :-1])[0]).flatten(0, 1), target.flatten())


if __name__ == "__main__":
    path, images, texts = sys.argv[1:]
    decode, fields = {images: brand.DecodeImage(size=(32, 32))}, ("key", images, texts)
    ds = brand.BrandDataset(path, fields=fields, decode=decode, transform=document, memory="1GB")
    loader = brand.BrandLoader(ds, batch_size=4, collate_fn=collate)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen: list[str] = []
        total, shown = 0.0, 0
        for keys, pixels, tokens in loader:
            loss = model(pixels, tokens)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total, shown = [*seen, *keys], total + loss.item(), shown + len(pixels)
        different = len(set(seen))
        print(
            f"epoch {epoch}: {len(seen)} samples, {different} different, {shown} images, loss {total / len(loader):.1f}"
        )
