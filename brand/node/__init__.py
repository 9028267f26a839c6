"""The node server: reads ahead into bounded memory that its clients share, and answers draws.

memory      how much memory samples may take
choose      which order a data set, its memory and its storage ask for
arena       pages of shared memory
pages       how large pages are, and how many a sample takes
residents   which samples are in memory, and who needs them
epoch       how far one epoch is
epochs      which epochs are under way, and who draws from them
core        what to do next: all decisions, no I/O
tasks       what passes between decisions and those who act
executor    the threads that read and plan
messages    what clients and server say to each other
connection  who is at the other end, and where messages begin and end
server      the loop that ties these together
client      asks, maps the pages, copies
buffers     memory that is used again
launch      how a server comes to life and ends
process     the process of a server
counters    what was done so far
"""
