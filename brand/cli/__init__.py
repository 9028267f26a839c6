"""The command `brand`: a module for each command, or for commands of one theme, without logic.

main        the group `brand`, and its exit codes
convert     `convert`, `seal`: data sets made of folders, and of data of other tools
several     `convert --task` and `convert --engine`: one conversion on several machines
upkeep      `copy`, `unpack`, `verify`, `reindex`, `partition`: one pass over a whole data set
show        `info`, `cat`: the facts of a data set, and one of its samples
collection  `append`, `overlay`, `versions`, `delete`, `compact`, `redact`: changes of a collection
serve       `serve`, `launch`: the data server of a node, and those of several nodes
cache       `cache`: the contents of a cache folder
top         `top`: the statistics of a data server, while it runs
profile     `profile`: the speed of a storage
simulate    `simulate`: what a training will read, and how long it will take
jobs        `simulate --job`: the reads of several jobs that share a data server
doctor      `doctor`: whether Brand works on this machine
dataset     arguments that name a data set or a folder, and options that several commands have
output      tables, progress, figures, and JSON for programs

Results go to stdout, everything else to stderr. Only this package imports click and rich.
"""
