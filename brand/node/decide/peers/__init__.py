"""Feature: several nodes. What do they say and send?

peering        what a node says and does for others, and they for it
peers          which nodes can be reached, and their credit
telling        what nodes tell each other about their draws
disagreements  which runs cannot go on, because nodes disagree
sending        what this node sends to other nodes
outgoing       what one other node still has to get of an epoch
receiving      what other nodes send to this node, and what it asks them for
answering      samples that other nodes fetch by name
"""
