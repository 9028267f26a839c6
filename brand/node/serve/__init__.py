"""The loop of a data server, its threads and its sockets: this package executes the decisions of `brand.node.decide`.

server     the loop
requests   turns messages of clients into stimuli
clients    connections of clients
exchange   turns messages of other nodes into stimuli
composing  imports the features that only some servers need
work       plans and reads, in threads
executor   the threads
scouting   looks for chunks in the page cache, ahead of the reads
recording  a log of all decisions, and its replay
troubles   warnings about failing or slow storage
repeats    limits the log lines about similar events
lifetime   how long a server lives
tuning     settings of the server's process
process    the process that a training starts
"""
