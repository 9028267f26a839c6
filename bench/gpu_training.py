"""How fast does a ResNet-50 train from each loader, how busy is the GPU, and what does the training loop wait for?

    python -m bench.gpu_training --work SCRATCH [--workers 16] [--out bench/results/gpu-training.json]

Each feed (`picture_loaders.py`) trains in a fresh process: batches of 256 images of 224 x 224, bfloat16 autocast,
channels last, SGD. Pixels are uint8 in page-locked memory until they are on the GPU, which normalises them.

- `no loader`: one batch that stays on the GPU, the most that this training step can take;
- `brand, decoded on the GPU`: `decode=False`; torchvision decodes the bytes on the GPU, which crops and resizes;
- the others decode on the CPU, in `--workers` threads or processes.

`loop waits`: the part of the time that the loop spends in `next(loader)`, by cause if the loader tells it. The loop is
one step ahead of the GPU, so a wait that is shorter than a step does not stop the GPU. `GPU busy` is the mean of the
utilisation that the driver reports every 0.1 s: the part of the time in which any kernel runs.

Without a GPU, the script runs on the CPU: `--model tiny` tests it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import islice, repeat
from typing import Any, Final

from bench import harness
from bench.harness import Outcome, Rival
from bench.picture_data import Pictures, make
from bench.picture_loaders import FEEDS, FLIP, RATIO, SCALE, SIDE, Batch, Job, brand_loader, processor_s

MEAN: Final = (0.485, 0.456, 0.406)
DEVIATION: Final = (0.229, 0.224, 0.225)
_CLASSES: Final = 1000
_WARM: Final = 12
"""Steps before the measurement."""
_NONE: Final = Rival("no loader")
_GPU_DECODE: Final = Rival("brand, decoded on the GPU", "brand")
_OTHERS: Final = ("brand", "brand, DataLoader", "torchvision tensors", "torchvision PIL")
RIVALS: Final = (_NONE, *(FEEDS[name].rival for name in _OTHERS), _GPU_DECODE)


def build_model(name: str) -> Any:
    """Return a ResNet-50, or a model that is small enough for a test."""
    from torch import nn

    if name == "resnet50":
        return import_module("torchvision.models").resnet50()
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(nn.Conv2d(3, 8, 7, stride=8), nn.ReLU(), pool, nn.Flatten(), nn.Linear(8, _CLASSES))


class Trainer:
    """One model, and its training step."""

    def __init__(self, model: str, device: str) -> None:
        import torch

        self.torch, self.device = torch, torch.device(device)
        self.model = build_model(model).to(self.device, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        scale = [torch.tensor(each, device=self.device).mul(255).view(1, 3, 1, 1) for each in (MEAN, DEVIATION)]
        self.mean, self.deviation = scale

    def step(self, pixels: Any, labels: Any) -> Any:
        """Train one batch, and return its loss, which the GPU may still be computing."""
        torch = self.torch
        pixels = pixels.to(self.device, non_blocking=True)
        pixels = pixels.permute(0, 3, 1, 2) if pixels.shape[-1] == 3 else pixels
        labels = labels.to(self.device, non_blocking=True)
        pixels = pixels.to(torch.float32, memory_format=torch.channels_last).sub_(self.mean).div_(self.deviation)
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(pixels), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss


class Utilisation:
    """The mean utilisation of the GPU while a `with` block runs, sampled by a thread; None without a GPU."""

    def __init__(self, device: str) -> None:
        self._samples: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True) if device == "cuda" else None

    def __enter__(self) -> Utilisation:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        while not self._ended.wait(0.1):
            with suppress(nvml.NVMLError):
                self._samples.append(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)

    @property
    def mean(self) -> float | None:
        """Percent."""
        return statistics.fmean(self._samples) if self._samples else None


def gpu_name(device: str) -> str | None:
    """Return the name of the GPU; None on the CPU."""
    if device != "cuda":
        return None
    nvml = import_module("pynvml")
    nvml.nvmlInit()
    return str(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0)))


def _no_loader(job: Job, device: str) -> Iterator[Batch]:
    import torch

    pixels = torch.randint(256, (job.batch, SIDE, SIDE, 3), dtype=torch.uint8).to(device)
    return repeat((pixels, torch.randint(_CLASSES, (job.batch,)).to(device)))


def _gpu_decode(job: Job, device: str) -> Iterator[Batch]:
    """Decode on the GPU the bytes that a `BrandLoader` delivers; crop, resize and mirror there."""
    import torch

    vision, functional = import_module("torchvision.io"), import_module("torchvision.transforms.v2.functional")
    crop = import_module("torchvision.transforms").RandomResizedCrop
    for files, labels in brand_loader(job, decode=False):
        images = vision.decode_jpeg(files, mode=vision.ImageReadMode.RGB, device=device)
        crops = [
            functional.resized_crop(image, *crop.get_params(image, SCALE, RATIO), [SIDE, SIDE], antialias=True)
            for image in images
        ]
        pixels, flips = torch.stack(crops), torch.rand(len(crops)) < FLIP
        yield torch.where(flips.to(device)[:, None, None, None], pixels.flip(3), pixels), labels


def feed_of(name: str, job: Job, device: str) -> Iterator[Batch]:
    """Return the batches of a way to feed the training."""
    if name == _NONE.name:
        return _no_loader(job, device)
    if name == _GPU_DECODE.name:
        return _gpu_decode(job, device)
    return FEEDS[name].batches(job)


def train(trainer: Trainer, batches: Iterator[Batch], job: Job, seconds: float) -> dict[str, Any]:
    """Train for some seconds, and return the images a second, the utilisation and the waits of the loop."""
    last = None
    for pixels, labels in islice(batches, _WARM):
        last = trainer.step(pixels, labels)
    if last is not None:
        last.item()
    before, spent_s = _causes(job), processor_s()
    images, waited_s, start_s = 0, 0.0, time.perf_counter()
    with Utilisation(trainer.device.type) as gpu:
        while time.perf_counter() - start_s < seconds:
            asked_s = time.perf_counter()
            pixels, labels = next(batches)
            waited_s += time.perf_counter() - asked_s
            loss = trainer.step(pixels, labels)
            images += len(labels)
            if last is not None:
                last.item()  # the step before: the loop is at most one step ahead of the GPU
            last = loss
        assert last is not None
        last.item()
    wall_s, after = time.perf_counter() - start_s, _causes(job)
    waited = {cause: of["wait_s"] - before.get(cause, {"wait_s": 0.0})["wait_s"] for cause, of in after.items()}
    cpu_ms = 1e3 * (processor_s() - spent_s) / images
    return {
        "images_per_s": images / wall_s,
        "gpu_percent": gpu.mean,
        "waits": waited_s / wall_s,
        "waits_by_cause": {cause: lost_s / wall_s for cause, lost_s in waited.items() if lost_s > 0},
        "cpu_ms": cpu_ms,
    }


def _causes(job: Job) -> dict[str, dict[str, float]]:
    """Return the waits of the loop so far, by cause, if the loader tells them."""
    found: dict[str, dict[str, float]] = job.stats().get("waits", {}).get("causes", {})
    return found


def child(arguments: argparse.Namespace) -> None:
    """Train from one feed."""
    trainer = Trainer(arguments.model, arguments.device)
    pictures = Pictures(arguments.work, arguments.kind, arguments.count)
    job = Job(pictures, arguments.workers, arguments.batch, pin=arguments.device == "cuda")
    batches = feed_of(arguments.rival, job, arguments.device)
    harness.report(arguments.report, train(trainer, batches, job, arguments.seconds))
    sys.stdout.flush()
    os._exit(0)  # some libraries wait at the end for workers that wait for them


def show(arguments: argparse.Namespace, outcomes: Sequence[Outcome], mean_bytes: float) -> None:
    """Print the table."""
    runs = {r.name: [o.values for o in outcomes if o.rival == r.name and o.status == "ok"] for r in RIVALS}
    most = [values["images_per_s"] for values in runs[_NONE.name]]
    rows = []
    for name, found in runs.items():
        if not found:
            continue
        rate = statistics.median(values["images_per_s"] for values in found)
        share = f"{100 * rate / statistics.median(most):.0f}%" if most else ""
        causes = {cause for values in found for cause in values["waits_by_cause"]}
        each = {c: statistics.median(values["waits_by_cause"].get(c, 0.0) for values in found) for c in causes}
        told = ", ".join(f"{c} {100 * s:.1f}%" for c, s in sorted(each.items(), key=lambda pair: -pair[1]) if s >= 5e-4)
        numbers = [harness.spread(found, *how) for how in (("images_per_s", 1, ",.0f"), ("gpu_percent", 1, ".0f"))]
        more = [harness.spread(found, *how) for how in (("waits", 100, ".1f"), ("cpu_ms", 1, ".2f"))]
        rows.append([name, numbers[0], share, numbers[1], more[0], told, more[1]])
    columns = ["", "images/s", "of no loader", "GPU busy %", "loop waits %", "by cause", "CPU ms"]
    title = f"{arguments.model}, {arguments.kind} images of {mean_bytes / 1e3:.0f} KB, {arguments.workers} workers"
    harness.show(f"\n{title}\n\n{harness.table(columns, rows)}{harness.failures(outcomes)}\n")


def main() -> None:
    """Train from all feeds, in turns."""
    parser = harness.parser("bench.gpu_training", __doc__, data=False, repeat=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="threads or processes")
    parser.add_argument("--model", choices=("resnet50", "tiny"), default="resnet50")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--kind", default="imagenet", help="of images (picture_data.py)")
    parser.add_argument("--count", type=int, default=8192, help="files (%(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="samples of a step (%(default)s)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a measurement (%(default)s)")
    parser.add_argument("--only", nargs="+", default=[rival.name for rival in RIVALS], help="only these")
    arguments = parser.parse_args()
    if arguments.rival is not None:
        child(arguments)
        return
    pictures = Pictures(arguments.work, arguments.kind, arguments.count)
    make(pictures)
    chosen = [rival for rival in RIVALS if rival.name in arguments.only]
    run = partial(harness.run_fresh, module="bench.gpu_training", arguments=(), limit_s=arguments.limit)
    outcomes = harness.round_robin(chosen, arguments.repeat, run)
    show(arguments, outcomes, pictures.mean_bytes)
    if arguments.out:
        names = ("model", "device", "kind", "count", "batch", "seconds", "workers")
        settings = {name: getattr(arguments, name) for name in names} | {"gpu": gpu_name(arguments.device)}
        harness.save(arguments.out, __doc__, settings, chosen, outcomes)


if __name__ == "__main__":
    main()
