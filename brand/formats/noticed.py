"""What was noticed about the samples of a data set: facts with a count, an example, and the option that helps.

`look` counts the traits of images (`heads`), and audio of unknown length, joined, cut or damaged, where all records
pass: for each chunk, in the process that makes it, and again if a chunk of an earlier run is found. `merged` adds the
counts of chunks, and those of the segments of a collection. A source adds facts of its own, such as skipped rows, as
`Noticed` objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats import heads
from brand.formats.audiostreams import has_damaged_head, is_cut, is_joined
from brand.formats.header import ELEMENTS, DecodeDefault, Schema, natural
from brand.formats.heads import traits_of
from brand.formats.manyheads import plain_kinds
from brand.formats.record import Records, elements, fixed_columns, payloads
from brand.printable import printable

MAX_NOTICED: Final = 1024
"""Maximum number of facts about a data set."""
_WHAT: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_NUMBER: Final = re.compile(r"\[([^|\]]*)(?:\|([^\]]*))?\]")
_MOST_TEXT: Final = 1000
"""Maximum characters of an example or a template."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """A fact about some samples.

    A template is a sentence with `{count}`, and, after it, `[s]` for text of the plural only, or `[is|are]` for both
    forms: `{count} row[s] [has|have] no text: --null text=VALUE keeps [it|them]`. Facts with one `what` and one `field`
    are one fact: their counts are added.
    """

    what: str
    """Name for programs: lowercase letters, digits and `_`, such as `rows_skipped`."""
    count: int
    """Number of samples, files or rows; at least 1."""
    example: str
    """Key of a sample, or the name of a file or row, that a user can look at."""
    template: str
    """The sentence for people, in the form of the class, with the option that helps."""
    field: str = ""
    """Field of the samples; empty if the fact is about whole samples, or about the source."""

    @property
    def text(self) -> str:
        """The sentence with the count: `3,112 images are turned by EXIF: upright=True turns them`."""
        many = self.count != 1
        # One form without `|` is the plural's: "[s]".
        chosen = _NUMBER.sub(
            lambda form: ("" if form[2] is None else form[1]) if not many else form[1 if form[2] is None else 2],
            self.template,
        )
        return chosen.replace("{count}", f"{self.count:,}")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        return {
            "what": self.what,
            "field": self.field,
            "count": self.count,
            "example": self.example,
            "text": self.text,
        }


_IMAGES: Final = "images"
"""The trait of all images."""
Counts = dict[tuple[str, str], tuple[int, int, str]]
"""(field, trait) -> (count, the smallest index of such a sample, its key). All images have a trait of their own."""


UNKNOWN_DURATIONS: Final = "unknown_durations"
JOINED: Final = "joined_audio"
EMPTY: Final = "empty_audio"
CUT: Final = "cut_audio"
DAMAGED_HEAD: Final = "damaged_audio_heads"
COUNTED: Final = (*heads.TRAITS, UNKNOWN_DURATIONS, EMPTY, JOINED, CUT, DAMAGED_HEAD)
"""The facts that `look` counts. They follow from the chunks."""


def has_media(schema: Schema) -> bool:
    """Whether `look` counts anything."""
    return any(ELEMENTS.get(codec, codec) == "image" for _, codec in schema.variable) or bool(_measured(schema))


def _measured(schema: Schema) -> str:
    """Return the audio field whose length is in the field `duration`; empty if there is none."""
    audio = [name for name, codec in schema.variable if codec == "audio"]
    return audio[0] if audio and ("duration", "float") in schema.fields else ""


def look(schema: Schema, records: Records, indices: NDArray[np.integer[Any]]) -> Counts:
    """Count the traits of the media of some records, whose samples have these public indices.

    In a field of lists, each image counts.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for name, codec in schema.variable:
        if ELEMENTS.get(codec, codec) != "image":
            continue
        images, owner = payloads(schema, records, name), np.arange(len(records))
        if codec in ELEMENTS:
            images, owner = elements(images)
        kinds = plain_kinds(images)
        groups = [np.flatnonzero(kinds == kind) for kind in sorted(set(kinds.tolist()) - {0})]
        numbers = indices[owner]
        firsts = [int(each[numbers[each].argmin()]) for each in groups]
        some = list(zip((traits_of(images.view(first)) for first in firsts), map(len, groups), firsts, strict=True))
        others = np.flatnonzero(kinds == 0)
        some += zip(map(traits_of, images[others].pieces()), repeat(1), others.tolist())
        if len(images):
            some.append(((_IMAGES,), int(np.count_nonzero(images.sizes)), int(numbers.argmin())))
        for traits, more, best in some:
            for trait in traits:
                at = int(owner[best])
                count, first = found.get((name, trait), (0, at))
                found[name, trait] = count + more, at if indices[at] < indices[first] else first
    if audio := _measured(schema):
        durations = fixed_columns(schema, records)["duration"]
        pieces = list(payloads(schema, records, audio).pieces())
        has = {UNKNOWN_DURATIONS: np.isnan(durations), EMPTY: durations == 0}
        for trait, test in ((JOINED, is_joined), (CUT, is_cut), (DAMAGED_HEAD, has_damaged_head)):
            has[trait] = np.fromiter(map(test, pieces), bool, len(pieces))
        for trait, such in has.items():
            if such.any():
                numbers = np.flatnonzero(such)
                found[audio, trait] = len(numbers), int(numbers[indices[numbers].argmin()])
    keys = payloads(schema, records, "key") if found and "key" in schema.names else None
    made: Counts = {}
    for which, (count, position) in found.items():
        index = int(indices[position])
        made[which] = count, index, str(index) if keys is None else bytes(keys.view(position)).decode(errors="replace")
    return made


def added(*counts: Counts) -> Counts:
    """Return the sums of counts of different samples. The order of the arguments does not matter."""
    found: Counts = {}
    for some in counts:
        for which, (count, index, key) in some.items():
            old = found.get(which)
            found[which] = (count, index, key) if old is None else (count + old[0], *min((index, key), old[1:]))
    return found


def facts_of(counts: Counts, decode: Mapping[str, DecodeDefault]) -> tuple[Noticed, ...]:
    """Return counted traits as facts. If all images of a field are grey, that is no fact.

    `decode` are the decode defaults of the fields, which change the advice.
    """
    facts = []
    for field in sorted({field for field, _ in counts}):
        for trait in COUNTED:
            count, _, key = counts.get((field, trait), (0, 0, ""))
            if count and not (trait == heads.GREY and count == counts[field, _IMAGES][0]):
                template = _template(trait, decode.get(field))
                facts.append(Noticed(trait, count, printable(key)[:_MOST_TEXT], template, field))
    return tuple(facts)


_KEPT: Final = "{count} image[s] [has|have] %s: mode='unchanged' keeps [it|them]"
_TEMPLATES: Final = {
    heads.TURNED: "{count} image[s] [is|are] turned by EXIF: upright=True turns [it|them]",
    heads.BITS_16: _KEPT % "16 bits",
    heads.BITS_32: _KEPT % "32 bits",
    heads.BITS_LOST: "{count} image[s] [has|have] 10 or 12 bits a channel, and decode[s|] to 8: no mode keeps them",
    heads.FLOATS: _KEPT % "floating-point values",
    heads.FRAMES: "{count} image[s] [has|have] several frames: the first is decoded, frame= chooses another",
    heads.CMYK: "{count} image[s] [is|are] CMYK and become[s|] RGB: mode='unchanged' keeps [it|them]",
    heads.ALPHA: "{count} image[s] [has|have] transparency: mode='RGBA' keeps it",
    heads.ALPHA_LOST: "{count} image[s] of 16 bits [has|have] a transparent colour: no mode keeps it",
    heads.CHANNELS_LOST: "{count} image[s] [has|have] more channels than Pillow decodes: no mode keeps them",
    heads.UNOPENED: "{count} image[s] [is|are] in a form that Pillow does not open: --validate --on-error skip leaves"
    " [it|them] out",
    heads.PALETTE: "{count} image[s] [has|have] a palette: mode='unchanged' keeps [its|their] indices, as masks need",
    UNKNOWN_DURATIONS: "{count} audio file[s] [does|do] not decode to [its|their] end, and [has|have] the duration nan:"
    " --on-error skip leaves such files out",
    EMPTY: "{count} audio file[s] [has|have] no samples, and [has|have] the duration 0: `subset=` leaves [it|them] out"
    " of training",
    JOINED: "{count} audio file[s] [consists|consist] of several recordings: all are decoded, where some decoders stop"
    " after the first",
    CUT: "{count} audio file[s] end[s|] before the end that [it states|they state], and decode[s|] as far as"
    " [it goes|they go]",
    DAMAGED_HEAD: "{count} MP3 file[s] [has|have] a damaged head: [its length|their lengths] may be wrong",
    heads.GREY: "{count} image[s] [is|are] grey: mode='L' decodes one channel",
}


_STAYS: Final = (
    heads.TURNED,
    heads.FRAMES,
    heads.BITS_LOST,
    heads.ALPHA_LOST,
    heads.CHANNELS_LOST,
    heads.UNOPENED,
)
"""Traits that the mode "unchanged" does not change."""


def _template(trait: str, decode: DecodeDefault | None) -> str:
    if trait in (UNKNOWN_DURATIONS, EMPTY, JOINED, CUT, DAMAGED_HEAD):
        return _TEMPLATES[trait]
    if decode is not None and decode.upright and trait == heads.TURNED:
        return "{count} image[s] [is|are] turned by EXIF and decode[s|] upright"
    if decode is not None and decode.mode == "unchanged" and trait not in _STAYS:
        return _TEMPLATES[trait].partition(":")[0] + ", and decode[s|] unchanged"
    return _TEMPLATES[trait]


def merged(facts: Iterable[Noticed]) -> tuple[Noticed, ...]:
    """Return facts with the counts of equal ones added, in the order in which they occur first."""
    found: dict[tuple[str, str], Noticed] = {}
    for fact in facts:
        old = found.get((fact.field, fact.what))
        found[fact.field, fact.what] = fact if old is None else replace(old, count=old.count + fact.count)
    return tuple(found.values())


def to_json(facts: Sequence[Noticed]) -> list[dict[str, Any]]:
    """Return facts as they are stored in a manifest."""
    return [
        {"what": f.what, "field": f.field, "count": f.count, "example": f.example, "template": f.template}
        for f in facts
    ]


def from_json(value: Any) -> tuple[Noticed, ...]:
    """Check stored facts. Raises ValueError, KeyError, TypeError."""
    if not isinstance(value, list) or len(value) > MAX_NOTICED:
        raise ValueError(f"facts are a list of at most {MAX_NOTICED}")
    facts = []
    for each in value:
        what, texts = each["what"], [each["example"], each["template"], each["field"]]
        if not isinstance(what, str) or not _WHAT.fullmatch(what):
            raise ValueError(f"{what!r:.80} is no name of a fact")
        if not all(isinstance(text, str) and len(text) <= _MOST_TEXT for text in texts):
            raise ValueError(f"the texts of {what!r} are no texts of at most {_MOST_TEXT:,} characters")
        facts.append(Noticed(what, natural(each["count"], "count", positive=True), *texts))
    return tuple(facts)
