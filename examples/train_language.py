"""Train a small causal language model on packed texts, paragraph by paragraph, with bytes as tokens.

    python examples/train_language.py examples/data/LICENSES language.brand

A token attends to earlier tokens of its own document, and to no other document of its row.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import brand

ROW, ROWS, WIDTH, HEADS = 256, 8, 64, 4


class Model(nn.Module):
    """A model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(ROW, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 256)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss."""
        of, later = batch["document_ids"], torch.ones(ROW, ROW, dtype=torch.bool).triu(1)
        hidden = (of[:, :, None] != of[:, None]) | later
        x = self.tokens(batch["input_ids"]) + self.places(batch["position_ids"])
        logits = self.out(self.layers(x, mask=hidden.repeat_interleave(HEADS, 0)))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


source, target = map(Path, sys.argv[1:])
texts = [text for file in sorted(source.glob("*.txt")) for text in file.read_text("utf-8").split("\n\n")]
samples = [{"tokens": np.frombuffer(t.encode() + b"\n", np.uint8), "count": len(t.encode()) + 1} for t in texts]
brand.pack(samples, target, schema={"tokens": "ndarray", "count": "int"})
data = brand.BrandDataset(target, fields=("tokens",))
subset = data.column("count") <= ROW * ROWS
sampler = brand.PackedBatchSampler(data, "count", tokens_per_row=ROW, rows_per_batch=ROWS, subset=subset)
torch.manual_seed(0)
loader, model = brand.BrandLoader(data, batch_sampler=sampler, collate_fn=sampler.collate("tokens")), Model()
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
for epoch in range(3):
    losses = []
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(f"epoch {epoch}: {len(losses)} batches, {sampler.padding(epoch):.1%} padding, loss {np.mean(losses):.1f}")
