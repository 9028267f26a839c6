"""From a source to shuffled chunks. Of Brand's other packages the chunker imports only `formats` and `stores`.

convert     `pack`, `convert_images`, `convert_audio`, `convert_from`, `convert_tokens`
distributed one conversion by several processes or machines: `plan_images`, `plan_audio`, `run`, `run_task`, `seal`
conductor   source -> order -> probe -> plan -> workers -> index -> manifest
tasks       FEATURE a conversion by several machines that share only a folder
work        chunks, the target, and the results of earlier runs
importers   FEATURE data of other tools, and tables
sources     folders, shards and Python objects as sources of samples
plan        options, decisions, progress and report
"""

from brand.chunker.convert import convert_audio, convert_from, convert_images, convert_tokens, pack
from brand.chunker.importers.tokens import TokenOptions
from brand.chunker.plan.plan import Options
from brand.chunker.plan.report import Report

__all__ = [
    "Options",
    "Report",
    "TokenOptions",
    "convert_audio",
    "convert_from",
    "convert_images",
    "convert_tokens",
    "pack",
]
