"""Data sets that grow: functions that add to a collection, and that remove from it. Each makes a new version.

append      `append_*`: a folder, data of another tool, samples from Python, or a data set becomes a segment
changes     `overlay`: a column of numbers for all samples, in no segment
            `delete`: samples are no longer read or fetched; their bytes remain, and `undelete` restores the samples
compacting  `compact`: segments are written again without their deleted samples, and small neighbours are merged
tiers       which neighbouring segments become one: a pure function of their sizes
rewriting   writes a segment in place of others, without some of their samples
companions  joins the files next to the samples of segments that are merged
origins     the samples that were added already
redaction   `redact`: delete, compact, and the old files are removed, with a report
home        publishes a version, whole or not at all; lists versions, and removes them with their files

`docs/reference/format.md`, section 11, specifies the files.
"""

from brand.collect.append import append_audio as append_audio
from brand.collect.append import append_data_set as append_data_set
from brand.collect.append import append_from as append_from
from brand.collect.append import append_images as append_images
from brand.collect.append import append_samples as append_samples
from brand.collect.append import append_tokens as append_tokens
from brand.collect.changes import NamedSamples as NamedSamples
from brand.collect.changes import delete as delete
from brand.collect.changes import overlay as overlay
from brand.collect.changes import undelete as undelete
from brand.collect.compacting import compact as compact
from brand.collect.home import versions as versions
from brand.collect.redaction import redact as redact

__all__ = [
    "NamedSamples",
    "append_audio",
    "append_data_set",
    "append_from",
    "append_images",
    "append_samples",
    "compact",
    "delete",
    "overlay",
    "redact",
    "undelete",
    "versions",
]
