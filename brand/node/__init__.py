"""The data server and its clients, in six packages. Each package imports only from the packages below it.

serve     the loop of a server, its threads and sockets
client    finds, starts and asks a server
setup     everything that is decided before a server runs
decide    the decisions of a server: pure
wire      the messages between processes
memory    the samples in memory, and their pages
"""
