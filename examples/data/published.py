"""Lay out the photos and clips of this folder as well-known data sets are published, a dozen samples each.

    python examples/data/published.py data                  # all layouts, below the folder `data`
    python examples/data/published.py data voc nemo         # two of them

    voc            VOCdevkit/VOC2012: JPEGImages, SegmentationClass (palette; 255 is ignored), ImageSets
    coco           coco: train2017, annotations/instances_train2017.json and captions_train2017.json
    llava          llava: conversations.json, documents with 0 to 5 images below `images`
    cauldron       cauldron: Parquet with a list of images and a list of texts a row
    kaggle         kaggle: train_images and their labels in train.csv, test_images
    librispeech    LibriSpeech/dev-clean: speaker/chapter/*.flac and *.trans.txt
    nemo           nemo: train_manifest.json with offsets into recordings
    common_voice   cv-corpus/en: clips/*.mp3, train.tsv, dev.tsv

The pixels and the voices are real. Scenes are composed of several photos, and the texts say what is in them.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
PHOTOS, CLIPS = HERE / "photos", HERE / "clips"
OBJECTS = {
    "animals/horse.png": (19, "horse"),
    "tools/anvil.png": (3, "anvil"),
    "animals/yellow_gourami.png": (90, "fish"),
    "tools/hammer.png": (4, "hammer"),
    "animals/armadillo.png": (25, "armadillo"),
}
"""Cut-out photos, with their category in COCO's way: numbers with gaps, in no order."""
BACKGROUNDS = ("animals/moose.webp", "outdoors/rocket.jpg", "outdoors/solar2.webp", "outdoors/windmill.webp")
NAMES = sorted(name for _, name in OBJECTS.values())
"""Number n of the masks is name n - 1."""
IGNORED = 255
RATE = 16_000


@dataclass
class Scene:
    """A background with up to three objects."""

    number: int
    image: Image.Image
    mask: np.ndarray[Any, Any]
    objects: list[tuple[str, tuple[int, int, int, int], int]] = field(default_factory=list)
    """File, box (x, y, width, height) and visible area of each object."""


def scenes(count: int) -> Iterator[Scene]:
    """Yield scenes of 200 to 420 pixels; each fifth one holds no object."""
    chance = np.random.default_rng(0)
    for number in range(count):
        width, height = (int(side) for side in chance.integers(200, 420, 2))
        background = Image.open(PHOTOS / BACKGROUNDS[number % len(BACKGROUNDS)]).convert("RGB").resize((width, height))
        scene = Scene(number, background, np.zeros((height, width), np.uint8))
        for _ in range(number % 5 and 1 + number % 3):
            name = str(chance.choice(list(OBJECTS)))
            cut = Image.open(PHOTOS / name).convert("RGBA")
            cut.thumbnail((width // 2, height // 2))
            x, y = int(chance.integers(width - cut.width + 1)), int(chance.integers(height - cut.height + 1))
            scene.image.paste(cut, (x, y), cut)
            alpha = np.asarray(cut)[:, :, 3]
            place = scene.mask[y : y + cut.height, x : x + cut.width]
            place[alpha > 20] = IGNORED  # the border of an object
            place[alpha > 200] = NAMES.index(OBJECTS[name][1]) + 1
            rows, columns = np.nonzero(alpha > 20)
            box = (x + columns.min(), y + rows.min(), columns.max() + 1 - columns.min(), rows.max() + 1 - rows.min())
            scene.objects.append((name, tuple(int(side) for side in box), int((alpha > 20).sum())))  # type: ignore[arg-type]
        yield scene


def voc(to: Path) -> None:
    """Lay out 15 images with masks, and two without."""
    root = to / "VOCdevkit" / "VOC2012"
    images, masks, sets = (root / name for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"))
    for folder in (images, masks, sets):
        folder.mkdir(parents=True)
    names = []
    for scene in scenes(17):
        name = f"2007_{scene.number * 7 + 32:06}"
        scene.image.save(images / f"{name}.jpg", quality=95)
        if scene.number < 15:
            png = Image.fromarray(scene.mask)
            png.putpalette(voc_palette())
            png.save(masks / f"{name}.png")
            names.append(name)
    for split, part in {"train": names[:12], "val": names[12:], "trainval": names}.items():
        _write_lines(sets / f"{split}.txt", part)


def voc_palette() -> bytes:
    """Return the colors of VOC: bits 0, 3, 6 of a number are the high bits of red, 1, 4, 7 of green, 2, 5 of blue."""
    numbers = np.arange(256)
    colors = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= ((numbers >> (3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return colors.tobytes()


def coco(to: Path) -> None:
    """Lay out 12 images with boxes, and with five captions or more."""
    images, notes = to / "coco" / "train2017", to / "coco" / "annotations"
    images.mkdir(parents=True)
    notes.mkdir()
    listed: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    captions: list[dict[str, Any]] = []
    for scene in scenes(12):
        identity = 9 + 16 * ((scene.number * 5) % 12)
        name = f"{identity:012}.jpg"
        (scene.image.convert("L") if scene.number == 3 else scene.image).save(images / name, quality=95)
        size = {"height": scene.image.height, "width": scene.image.width}
        listed.append({"license": 3, "file_name": name, **size, "id": identity})
        for file, box, area in scene.objects:
            x, y, w, h = (float(side) for side in box)
            about = {"segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]], "area": float(area), "iscrowd": 0}
            found.append(about | {"image_id": identity, "bbox": [x, y, w, h], "category_id": OBJECTS[file][0]})
        if scene.number == 8:  # a crowd, as run lengths of columns
            run = {"counts": [0, size["height"] * size["width"]], "size": [size["height"], size["width"]]}
            everything = {
                "bbox": [0.0, 0.0, float(size["width"]), float(size["height"])],
                "area": float(run["counts"][1]),
            }
            found.append({"segmentation": run, "iscrowd": 1, "image_id": identity, **everything, "category_id": 3})
        seen = " and a ".join(OBJECTS[file][1] for file, _, _ in scene.objects) or "place without anyone"
        forms = ["A {}.", "There is a {}", "a photo of a {} ", 'It is called "a {}".', "«Un {}», ¿no?", "The {}\n"]
        for form in forms[: 6 if scene.number == 7 else 5]:
            captions.append({"image_id": identity, "caption": form.format(seen)})
    info = {"info": {"year": 2017, "version": "1.0"}, "licenses": [{"id": 3, "name": "none"}], "images": listed}
    kinds = [{"supercategory": "thing", "id": number, "name": name} for number, name in OBJECTS.values()]
    boxes = [row | {"id": 900 + n} for n, row in enumerate(found)]
    (notes / "instances_train2017.json").write_text(json.dumps(info | {"annotations": boxes, "categories": kinds}))
    captions = [row | {"id": 48 + n} for n, row in enumerate(sorted(captions, key=lambda row: len(row["caption"])))]
    (notes / "captions_train2017.json").write_text(json.dumps(info | {"annotations": captions}))


def documents() -> list[tuple[str, list[str], list[tuple[str, str]]]]:
    """Return an identifier, files and turns (speaker, text) of 12 documents with 0 to 5 photos."""
    files = sorted(path.relative_to(PHOTOS).as_posix() for path in PHOTOS.rglob("*.*"))
    made, next_file = [], itertools.cycle(files)
    for number in range(12):
        some = list(itertools.islice(next_file, number % 6))
        names = [Path(name).stem.replace("_", " ") for name in some]
        asked = "<image>\n" * len(some) + ("What is in these images?" if some else 'Say "hello" in Chinese.')
        turns = [("human", asked), ("gpt", " | ".join(names) if names else "你好\u2028“hello”!")]
        made.append((f"{number:09}", some, turns + [("human", "Thanks"), ("gpt", "\t😀\n")] * (number % 3)))
    return made


def llava(to: Path) -> None:
    """Lay out the documents as one array of JSON; `image` is a list, and is missing in documents without images."""
    (to / "llava" / "images").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for identity, files, turns in documents():
        for name in files:
            (to / "llava" / "images" / name).parent.mkdir(exist_ok=True)
            (to / "llava" / "images" / name).write_bytes((PHOTOS / name).read_bytes())
        images = {"image": [f"images/{name}" for name in files]} if files else {}
        said = [{"from": who, "value": text} for who, text in turns]
        rows.append({"id": identity} | images | {"conversations": said})
    (to / "llava" / "conversations.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False), "utf-8")


def cauldron(to: Path) -> None:
    """Lay out the documents with one image or more as Parquet of the Hub: `list<struct<bytes, path>>`."""
    import pyarrow as pa
    import pyarrow.parquet

    rows = []
    for _, files, turns in documents():
        images = [{"bytes": (PHOTOS / name).read_bytes(), "path": None} for name in files]
        pairs = zip(turns[::2], turns[1::2], strict=True)
        asked = [(ask.replace("<image>", "").strip(), answer) for (_, ask), (_, answer) in pairs]
        texts = [{"user": ask, "assistant": answer, "source": "photos"} for ask, answer in asked]
        if images:
            rows.append({"images": images, "texts": texts})
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    text = pa.struct([("user", pa.string()), ("assistant", pa.string()), ("source", pa.string())])
    schema = pa.schema([("images", pa.list_(image)), ("texts", pa.list_(text))])
    (to / "cauldron" / "photos").mkdir(parents=True)
    file = to / "cauldron" / "photos" / "train-00000-of-00001.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema), file, row_group_size=4)


def kaggle(to: Path) -> None:
    """Lay out the photos in one folder, and their labels in a table, in another order; and three without labels."""
    for name in ("train_images", "test_images"):
        (to / "kaggle" / name).mkdir(parents=True)
    rows = []
    for number, path in enumerate(sorted(PHOTOS.rglob("*.*"))):
        code = f"{number * 7919 % 65536:04x}"
        image = Image.open(path).convert("RGBA").convert("RGB")
        image.save(to / "kaggle" / "train_images" / f"{code}.jpg", quality=90)
        rows.append((code, path.parent.name, f'from "{path.name}", by hand'))
    kinds = sorted({kind for _, kind, _ in rows})
    lines = ["id_code,diagnosis,remark"]
    for code, kind, remark in sorted(rows, key=lambda row: row[2]):
        quoted = remark.replace('"', '""')
        lines.append(f'{code},{kinds.index(kind)},"{quoted}"')
    _write_lines(to / "kaggle" / "train.csv", lines)
    for number, scene in enumerate(scenes(3)):
        scene.image.save(to / "kaggle" / "test_images" / f"ff{number:02x}.jpg")
    _write_lines(to / "kaggle" / "sample_submission.csv", ["id_code,diagnosis", *(f"ff{n:02x},0" for n in range(3))])


def speech() -> list[tuple[str, str, np.ndarray[Any, Any]]]:
    """Return speaker, text and sound (float32, 16 kHz) of the clips with a transcript."""
    import soundfile
    import soxr

    spoken = []
    for line in (CLIPS / "transcripts.tsv").read_text("utf-8").splitlines()[1:]:
        path, text = line.split("\t")
        wave, rate = soundfile.read(CLIPS / path, dtype="float32")
        spoken.append((path.split("/")[0], text, np.clip(soxr.resample(wave, rate, RATE), -1, 1)))
    return spoken


def librispeech(to: Path) -> None:
    """Lay out the speakers as FLAC, with upper-case texts, two chapters each."""
    import soundfile

    root = to / "LibriSpeech"
    speakers: dict[str, str] = {}
    chapters: dict[Path, list[str]] = {}
    for number, (who, text, wave) in enumerate(speech()):
        speaker = speakers.setdefault(who, str(84 + 90 * len(speakers)))
        folder = root / "dev-clean" / speaker / str(121_000 + int(speaker) * 2 + number % 2)
        lines = chapters.setdefault(folder, [])
        name = f"{speaker}-{folder.name}-{len(lines):04}"
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"{name}.flac", wave, RATE, "PCM_16")
        lines.append(f"{name} {text.upper()}")
    for folder, lines in chapters.items():
        _write_lines(folder / f"{folder.parent.name}-{folder.name}.trans.txt", lines)
    table = [";ID  |SEX| SUBSET           |MINUTES| NAME"]
    table += [f"{number:5}| F | dev-clean        | 0.1   | {who}" for who, number in speakers.items()]
    _write_lines(root / "SPEAKERS.TXT", table)


def nemo(to: Path) -> None:
    """Lay out one recording a speaker, with a manifest of the stretches that are speech, in mixed order."""
    import soundfile

    root = to / "nemo"
    (root / "audio").mkdir(parents=True)
    recordings: dict[str, list[np.ndarray[Any, Any]]] = {}
    rows = []
    for number, (who, text, wave) in enumerate(speech()):
        parts = recordings.setdefault(who, [])
        pause = np.zeros(1601 + 317 * number % 4000, np.float32)
        begin = sum(map(len, parts)) + len(pause)
        parts += [pause, wave]
        name = f"audio/{who}.{'flac' if len(recordings) % 2 else 'wav'}"
        times = {"offset": begin / RATE, "duration": len(wave) / RATE}
        rows.append({"audio_filepath": name, **times, "text": text, "speaker": who})
    for who, parts in recordings.items():
        name = next(str(row["audio_filepath"]) for row in rows if row["speaker"] == who)
        soundfile.write(root / name, np.concatenate([*parts, np.zeros(RATE, np.float32)]), RATE, "PCM_16")
    rows.sort(key=lambda row: str(row["text"])[::-1])
    _write_lines(root / "train_manifest.json", (json.dumps(row, ensure_ascii=False) for row in rows))


def common_voice(to: Path) -> None:
    """Lay out the clips as MP3, and tables of two splits; quotes in the sentences are characters."""
    import soundfile

    root = to / "cv-corpus" / "en"
    (root / "clips").mkdir(parents=True)
    columns = "client_id path sentence_id sentence sentence_domain up_votes down_votes age gender accents variant"
    lines = ["\t".join([*columns.split(), "locale", "segment"])]
    lengths = ["clip\tduration[ms]"]
    for number, (who, text, wave) in enumerate(speech()):
        name = f"common_voice_en_{17_000_000 + number * 7919 % 1000}.mp3"
        soundfile.write(root / "clips" / name, wave, RATE)
        quoted = (text, f'"{text}"', f'"{text}" she said', f'He said: "{text}')[number % 4]
        row = [f"{hash_of(who)}", name, hash_of(text), quoted, "", "2", "0", "twenties", "", "", "", "en", ""]
        lines.append("\t".join(row))
        lengths.append(f"{name}\t{round(len(wave) / RATE * 1000)}")
    _write_lines(root / "train.tsv", lines[:-6])
    _write_lines(root / "dev.tsv", [lines[0], *lines[-6:]])
    _write_lines(root / "clip_durations.tsv", lengths)


def hash_of(text: str) -> str:
    """Return an identifier that looks like those of Common Voice."""
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")


LAYOUTS = {make.__name__: make for make in (voc, coco, llava, cauldron, kaggle, librispeech, nemo, common_voice)}

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for chosen in sys.argv[2:] or LAYOUTS:
        LAYOUTS[chosen](Path(sys.argv[1]))
