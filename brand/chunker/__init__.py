"""Sources -> shuffled chunks. Of Brand's other rooms it imports only `formats` and `stores`.

convert     the ways in: `pack`, `convert_images`, `convert_audio`, `convert_from`
conductor   source -> order -> probe -> plan -> workers -> index -> manifest
request     a folder that a user names -> a source
folders     what lies in an image or audio folder, in ImageFolder's order
transcripts the texts of clips                      listing     the found files as arrays on disk
check       files that cannot be used               source      kinds of source behind one interface
kinds       are these bytes an image, or a clip?
shards      a source that is read from its front    importers   data of other tools, as shards
fields      columns of a source -> fields           exchange    shards, each read once -> parts
sortedparts one stretch of a source in sorted runs  spool       parts, read in any order
tables      a table given to `pack`                 shuffle     the permutation, in bounded memory
options     what a user can choose                  plan        pure decisions: chunk size, compression, identity
probe       what a few samples tell                 claim       which conversion has a target
like        what a part of a collection must have in common with the others
chunks      one chunk: records -> file              companions  skipped.tsv and extras.zip
workers     processes that stop cleanly             work        what earlier runs have left, and where files go
folder_work a conversion into a folder              store_work  a conversion into a store
kept        what the index needs of chunks that another process has made
report      progress and result

A conversion that several machines work on, with nothing between them but a folder that all see:

distributed the ways in: `plan_images`, `plan_audio`, `run`, `run_task`, `seal`
planning    one plan for all                        job         what the plan says
running     any process makes any chunk             parts       a task: the chunks of one machine
sealing     from the chunks to the data set
"""

from brand.chunker.convert import convert_audio as convert_audio
from brand.chunker.convert import convert_from as convert_from
from brand.chunker.convert import convert_images as convert_images
from brand.chunker.convert import pack as pack
from brand.chunker.options import Options as Options
from brand.chunker.report import Report as Report

__all__ = ["Options", "Report", "convert_audio", "convert_from", "convert_images", "pack"]
