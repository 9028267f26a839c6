"""Train a small classifier on images whose labels are in a table, as most Kaggle competitions have them.

    python examples/data/published.py data kaggle
    brand convert images data/kaggle/train_images kaggle.brand --table data/kaggle/train.csv --key id_code
    python examples/train_table.py kaggle.brand diagnosis

The column of the table that holds the labels is a field of its name.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from brand import BrandDataset, BrandLoader, DecodeImage

if __name__ == "__main__":
    path, label = sys.argv[1:]
    decode = {"image": DecodeImage(size=(64, 64))}
    ds = BrandDataset(path, fields=("key", "image", label), decode=decode, memory="1GB")
    classes = int(ds.column(label).max()) + 1
    loader = BrandLoader(ds, batch_size=8)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(512, classes)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen: list[str] = []
        total = 0.0
        for keys, images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.permute(0, 3, 1, 2) / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total = [*seen, *keys], total + loss.item()
        print(f"epoch {epoch}: {len(seen)} samples, {len(set(seen))} different, loss {total / len(loader):.1f}")
