"""The training process's side of the data server.

client       begins and draws, even if the server ends meanwhile
connector    connects, or starts a server first
session      one connection: requests, replies, copies of samples
memories     the memories that a server shares, and copies out of them
direct_hits  samples that the client copies without a request
direct       in place of all of these without a server: direct reads
decoded      decode specs, and decoded values of a draw
orders       orders that grow
"""
