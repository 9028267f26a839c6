"""The node server and its clients, in six rooms; each imports only from those below it.

serve     the loop of a server, its threads and sockets
client    the way to a server
setup     what is settled before a server runs
decide    what a server does next: pure
wire      what processes say to each other
memory    which samples are in memory, and in which pages
"""
