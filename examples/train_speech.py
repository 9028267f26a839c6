"""Train a small speech recognizer with CTC, in batches of recordings of similar length.

    python examples/data/published.py data librispeech nemo common_voice
    brand convert audio data/LibriSpeech/dev-clean librispeech.brand --no-labels
    brand convert audio data/nemo nemo.brand --transcripts data/nemo/train_manifest.json
    brand convert audio data/cv-corpus/en common-voice.brand --transcripts data/cv-corpus/en/train.tsv
    python examples/train_speech.py librispeech.brand

The other two data sets train with the same command. Texts are UTF-8, a byte a token.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from brand import BrandDataset, BrandLoader, DecodeAudio, LengthBatchSampler

RATE, STEP = 16_000, 160


def collate(samples: list[Any]) -> tuple[Any, ...]:
    """Return keys, padded waves, frames of each, and the bytes of all texts with their lengths."""
    keys, waves, texts = zip(*samples, strict=True)
    padded = pad_sequence([torch.from_numpy(wave) for wave in waves], batch_first=True)
    frames = torch.tensor([len(wave) // STEP + 1 for wave in waves])
    spelled = [torch.tensor(list(text.encode())) for text in texts]
    return keys, padded, frames, torch.cat(spelled), torch.tensor([len(text) for text in spelled])


class Model(nn.Module):
    """Spectrograms, two convolutions, and a score for each byte (0 is CTC's blank)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(201, 64, 9, padding=4), nn.ReLU(), nn.Conv1d(64, 256, 9, padding=4))

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of probabilities: (frames, batch, 256)."""
        spectrum = torch.stft(waves, 400, STEP, window=torch.hann_window(400), return_complex=True).abs()
        scores: torch.Tensor = self.layers(spectrum.log1p())
        return scores.permute(2, 0, 1).log_softmax(2)


if __name__ == "__main__":
    decode = {"audio": DecodeAudio(rate=RATE)}
    ds = BrandDataset(sys.argv[1], fields=("key", "audio", "text"), decode=decode, memory="1GB")
    sampler = LengthBatchSampler(ds, "duration", batch_length=10.0, seed=0)
    loader = BrandLoader(ds, batch_sampler=sampler, collate_fn=collate)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen: list[str] = []
        total = 0.0
        for keys, waves, frames, texts, lengths in loader:
            loss = nn.functional.ctc_loss(model(waves), texts, frames, lengths, zero_infinity=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total = [*seen, *keys], total + loss.item()
        print(f"epoch {epoch}: {len(seen)} samples, {len(set(seen))} different, loss {total / len(loader):.1f}")
