"""Sources -> shuffled chunks. Meets the rest of Brand only in `formats`.

convert     the conductor: source -> plan -> workers -> index -> manifest; `pack`, `convert_images`, `convert_audio`
folders     what lies in an image or audio folder, in ImageFolder's order        transcripts   the texts of clips
listing     the found files as arrays on disk                                    spool         an iterable, on disk in
sorted runs
source      the three sources behind one interface: folder, spool, indexable     shuffle       the permutation, in
bounded memory
plan        pure decisions: chunk size, blocks, identity                         chunks        one chunk: records ->
file
workers     processes that do tasks, and stop cleanly                            work          the work folder of a
conversion
"""

from brand.chunker.convert import Options as Options
from brand.chunker.convert import convert_audio as convert_audio
from brand.chunker.convert import convert_images as convert_images
from brand.chunker.convert import pack as pack
from brand.chunker.report import Progress as Progress
from brand.chunker.report import Report as Report

__all__ = ["Options", "Progress", "Report", "convert_audio", "convert_images", "pack"]
