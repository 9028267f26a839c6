"""How do decisions become acts? The loop of a node server, its threads and sockets.

server     the loop
requests   messages of clients become stimuli
clients    connections of clients
exchange   messages of nodes become stimuli
composing  parts of features that are on
work       plans and reads, in threads
executor   the threads
scouting   which chunks these find in the page cache ahead of the reads
recording  a log of all decisions, and its replay
troubles   what the log says of failing storage
repeats    which of many similar events get a line
lifetime   how long a server lives
tuning     how its process is set up
process    the process that a training starts
"""
