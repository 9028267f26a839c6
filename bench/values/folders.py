"""Image folders: does Brand yield the samples of torchvision's `ImageFolder`, and of timm's reader and loader?"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from timm.data import ImageDataset, create_loader, create_transform
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from bench.values import media
from bench.values.compare import WHOLE, Case, Sample

TORCHVISION: Final = "torchvision"
TIMM: Final = "timm"


def cases(root: Path) -> Iterator[Case]:
    """Yield the cases; their sources are made below `root`."""
    files = media.image_files()
    classes = ("c1", "c10", "c2", "B", "a")
    plain = media.write(
        root / "plain", {f"{classes[n % 5]}/{name}": data for n, (name, data) in enumerate(files.items())}
    )
    yield Case(TORCHVISION, "24 kinds of images", read_folder(plain), ["images", str(plain)])
    deep = media.write(
        root / "deep", {f"{n % 2}/{'zyx'[n % 3]}/{name}": data for n, (name, data) in enumerate(files.items())}
    )
    yield Case(TORCHVISION, "class folders with folders", read_folder(deep), ["images", str(deep)])
    linked = _linked(root / "linked", files)
    yield Case(
        TORCHVISION, "links to files and folders", read_folder(linked), ["images", str(linked), "--follow-links"]
    )
    yield Case(
        TORCHVISION, "links to folders", read_folder(linked), ["images", str(linked)], said={WHOLE: "--follow-links"}
    )
    others = {
        "a/x.gif": media.encoded(media.pixels("P", 1), "GIF"),
        "a/y.avif": media.encoded(media.pixels("RGB", 2), "AVIF"),
        "a/z.jp2": media.encoded(media.pixels("RGB", 3), "JPEG2000"),
        "b/ten-bits.avif": base64.b64decode(media.TEN_BITS_AVIF),
        "b/w.ico": media.encoded(media.pixels("RGB", 4, (16, 16)), "ICO"),
        "b/v": files["a1.jpg"],
        "a/1.png": files["c-rgb.PNG"],
        "b/1.png": files["c-rgb.PNG"],
    }
    more = media.write(root / "others", others)
    yield Case(
        TORCHVISION,
        "GIF, AVIF, JPEG 2000, ICO, no ending",
        read_folder(more),
        ["images", str(more)],
        by="key",
        said={WHOLE: "ending that ImageFolder leaves out"},
    )
    odd = media.write(
        root / "odd", {"a/1.png": files["c-rgb.PNG"], "a/.2.png": files["c-rgb.PNG"], "b/1.png": files["c-rgb.PNG"]}
    )
    yield Case(TORCHVISION, "hidden files", read_folder(odd), ["images", str(odd)], by="key", said={WHOLE: "hidden"})
    swapped = media.write(
        root / "swapped", {"a/1.jpg": files["c-rgb.PNG"], "b/2.png": files["a1.jpg"], "b/3.webp": files["f.bmp"]}
    )
    yield Case(TORCHVISION, "endings of other formats", read_folder(swapped), ["images", str(swapped)])
    broken = media.write(
        root / "broken",
        {"a/1.png": files["c-rgb.PNG"], "a/2.png": b"", "b/3.txt": b"notes", "b/4.jpg": files["a1.jpg"]},
    )
    yield Case(
        TORCHVISION,
        "an empty image, a text",
        read_folder(broken, ["a/2.png"]),
        ["images", str(broken)],
        said={WHOLE: "--on-error skip"},
    )
    yield Case(
        TORCHVISION,
        "an empty image, a text, --on-error skip",
        read_folder(broken, ["a/2.png"]),
        ["images", str(broken), "--on-error", "skip"],
        by="key",
        said={WHOLE: "a/2.png"},
    )
    names = media.write(
        root / "names", {f"{c}/{n} é#%.png": files["c-rgb.PNG"] for c in ("Zoë", "a b", "A", "ß") for n in ("10", "9")}
    )
    yield Case(TORCHVISION, "names in other scripts", read_folder(names), ["images", str(names)])
    resize = v2.Compose([v2.Resize(32, antialias=True), v2.CenterCrop(28), v2.ToImage()])
    yield Case(
        TORCHVISION,
        "24 kinds of images, through a transform",
        read_folder(plain, transform=lambda image: np.asarray(resize(image))),
        ["images", str(plain)],
        transform={"image": lambda image: np.asarray(resize(image))},
    )
    yield from _timm(root / "timm", files)


def _linked(root: Path, files: dict[str, bytes]) -> Path:
    media.write(root, {"a/1.png": files["c-rgb.PNG"], "b/2.jpg": files["a1.jpg"]})
    media.write(root.parent / "elsewhere", {"3.jpg": files["a2.JPG"], "deep/4.png": files["d-la.png"]})
    (root / "a/5.png").symlink_to("1.png")
    (root / "c").symlink_to(root.parent / "elsewhere")
    (root / "b/more").symlink_to(root.parent / "elsewhere/deep")
    return root


def read_folder(
    src: Path, without: Sequence[str] = (), transform: Callable[[Any], Any] | None = None
) -> Callable[[], list[Sample]]:
    """Return a function that reads a folder with `ImageFolder`; files of `without` are not decoded."""

    def read() -> list[Sample]:
        folder = ImageFolder(str(src), transform=transform)
        keys = [str(Path(path).relative_to(src)) for path, _ in folder.samples]
        samples = (
            (key, folder[n]) if key not in without else (key, (None, folder.targets[n])) for n, key in enumerate(keys)
        )
        return [{"image": image, "label": label, "key": key} for key, (image, label) in samples]

    return read


def _timm(root: Path, files: dict[str, bytes]) -> Iterator[Case]:
    options, timm_said = ["--leaf-classes", "--order", "natural"], {WHOLE: "ending that timm leaves out"}
    classes = ("c1", "c10", "c2", "B", "a")
    plain = media.write(
        root / "plain", {f"{classes[n % 5]}/{name}": data for n, (name, data) in enumerate(files.items())}
    )
    deep = media.write(
        root / "deep", {f"{n % 3}/{classes[n % 5]}/{name}": data for n, (name, data) in enumerate(files.items())}
    )
    yield Case(
        TIMM, "ImageDataset, class folders", _dataset(plain), ["images", str(plain), *options], by="key", said=timm_said
    )
    yield Case(
        TIMM,
        "ImageDataset, folders of classes",
        _dataset(deep),
        ["images", str(deep), *options],
        by="key",
        said=timm_said,
    )
    names = root / "classes.txt"
    names.write_text("".join(f"{name}\n" for name in ("c2", "c1", "a", "B", "c10")))
    yield Case(
        TIMM,
        "ImageDataset, class_map",
        _dataset(plain, class_map=str(names)),
        ["images", str(plain), "--classes", str(names), "--order", "natural"],
        by="key",
        said=timm_said,
    )
    ways: dict[str, dict[str, Any]] = {
        "ImageNet's defaults": {"input_size": (3, 64, 64)},
        "bicubic, crop_pct=1": {"input_size": (3, 48, 48), "interpolation": "bicubic", "crop_pct": 1.0},
        "crop_mode='squash'": {"input_size": (3, 40, 40), "crop_mode": "squash"},
    }
    for name, how in ways.items():
        transform = create_transform(**how, is_training=False)
        yield Case(
            TIMM,
            f"create_loader, {name}",
            _loader(plain, how),
            ["images", str(plain), *options],
            by="key",
            said=timm_said,
            transform={"image": partial(_through, transform)},
        )


def _through(transform: Callable[[Any], Any], image: Any) -> Any:
    return np.asarray(transform(image))


def _dataset(src: Path, **options: Any) -> Callable[[], list[Sample]]:
    def read() -> list[Sample]:
        data = ImageDataset(str(src), input_img_mode="RGB", **options)
        keys = data.filenames()
        return [{"image": image, "label": label, "key": key} for key, (image, label) in zip(keys, data, strict=True)]

    return read


def _loader(src: Path, how: dict[str, Any]) -> Callable[[], list[Sample]]:
    def read() -> list[Sample]:
        data = ImageDataset(str(src))
        keys = data.filenames()
        loader = create_loader(data, batch_size=5, is_training=False, use_prefetcher=False, num_workers=0, **how)
        pairs = [pair for images, labels in loader for pair in zip(images.numpy(), labels.tolist(), strict=True)]
        return [{"image": image, "label": label, "key": key} for key, (image, label) in zip(keys, pairs, strict=True)]

    return read
