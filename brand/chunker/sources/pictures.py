"""Pillow images that are stored as PNG, because they do not have the file any more that they were decoded from.

They are counted, so that the report says so: the PNG of a photo has several times the bytes of its JPEG file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from brand.formats.header import Schema
from brand.formats.noticed import Noticed
from brand.formats.values import has_file, is_picture

_TEXT: Final = (
    "{count} image[s] [is|are] encoded as PNG, which is lossless, and often has ten times the bytes of a JPEG: give the"
    " bytes of the files to store these. A data set of the library datasets gives them if decode(False) is called"
    " before map and filter"
)


class PictureCount:
    """How many values of image fields are encoded as PNG."""

    def __init__(self, schema: Schema) -> None:
        self._fields = [name for name, codec in schema.variable if codec == "image"]
        self._count, self._example = 0, ""

    def of_samples(self, samples: Iterable[Any]) -> Iterable[Any]:
        """Return the samples; those that have images are counted while they are read."""
        return self._counted(samples) if self._fields else samples

    def _counted(self, samples: Iterable[Any]) -> Iterator[Any]:
        for number, sample in enumerate(samples):
            if isinstance(sample, Mapping):
                for name in self._fields:
                    self._look(sample.get(name), number)
            yield sample

    def of_columns(self, columns: Mapping[str, Sequence[Any]], first: int) -> None:
        """Count in the columns of samples; `first` is the number of the first one."""
        for name in self._fields:
            for number, value in enumerate(columns[name], first):
                self._look(value, number)

    def noticed(self) -> tuple[Noticed, ...]:
        """Return the count as a fact for the report; none if it is 0."""
        return (Noticed("encoded_as_png", self._count, self._example, _TEXT),) if self._count else ()

    def of_first(self, samples: Any) -> None:
        """Look at the first of the samples of an object with an index, whose other samples workers make."""
        if self._fields:
            sample = samples[0]
            for name in self._fields if isinstance(sample, Mapping) else ():
                self._look(sample.get(name), 0)
            self._count *= len(samples)

    def _look(self, value: Any, number: int) -> None:
        if is_picture(value) and not has_file(value):
            self._count += 1
            if self._count == 1:
                self._example = f"sample {number}"
