"""The node server and its clients, in six rooms. Each room imports only from the rooms below it.

serve     the loop of a server, its threads and sockets
client    how a process finds, starts and asks a server
setup     what is settled before a server runs
decide    what a server does next: pure
wire      what processes say to each other
memory    which samples are in memory, and in which pages
"""
