"""How does a training process reach its server?

client     begins and draws, whatever happens to the server
connector  connects, or starts a server first
session    one connection: asks, maps the pages, copies
buffers    memory that is used again
launch     starts a server
"""
