"""The training process's side of the data server.

client     begins and draws, even if the server ends meanwhile
connector  connects, or starts a server first
session    one connection: requests, mapped pages, copies
buffers    reusable memory
launch     starts a server
"""
