"""Feature: several nodes. The package decides the messages and samples that nodes send each other.

peering        the feature's hooks in the steps of a node, and the messages from and to other nodes
peers          reachability and credit of each other node
telling        announcements of the epochs that each node draws
disagreements  runs that the server refuses because nodes disagree
sending        the samples that this node sends next
outgoing       the positions of an epoch that are still to be sent to one other node
receiving      samples from other nodes, and requests for them
answering      direct reads for other nodes
"""
