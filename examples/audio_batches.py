"""Read audio of different lengths and sample rates as padded batches.

    brand convert audio examples/data/clips clips.brand --transcripts examples/data/clips/transcripts.tsv
    python examples/audio_batches.py clips.brand

Each recording is mixed down to one channel, resampled to one rate, and padded with silence to the longest of its batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from brand import BrandDataset
from brand.formats.audio import Waveform

RATE = 8000
Clip = tuple[torch.Tensor, str, int]


def to_mono(clip: Waveform) -> torch.Tensor:
    """Return one channel at RATE frames a second, made from the spectrum, which is cut or padded to the new length."""
    mono = torch.from_numpy(clip.samples).mean(0)
    frames = round(len(mono) * RATE / clip.rate)
    wave: torch.Tensor = torch.fft.irfft(torch.fft.rfft(mono), n=frames)
    return wave * (frames / len(mono))


def collate(clips: list[Clip]) -> tuple[torch.Tensor, torch.Tensor, list[str], torch.Tensor]:
    """Pad audio with silence, and return it with its lengths, texts and speakers."""
    waves, texts, speakers = zip(*clips, strict=True)
    lengths = torch.tensor([len(wave) for wave in waves])
    return torch.nn.utils.rnn.pad_sequence(list(waves), batch_first=True), lengths, list(texts), torch.tensor(speakers)


def main() -> None:
    """Read one epoch of batches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a data set made with --transcripts, with one folder for each speaker")
    args = parser.parse_args()

    data = BrandDataset(args.path, fields=("audio", "text", "label"), transform={"audio": to_mono})
    print(data)
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=order, collate_fn=collate, num_workers=2)
    for waves, lengths, texts, speakers in loader:
        seconds = float(lengths.sum()) / RATE
        heard = len(set(speakers.tolist()))
        print(f"batch {tuple(waves.shape)}: {seconds:.1f} seconds of {heard} speakers, first text {texts[0]!r}")


if __name__ == "__main__":
    main()
