"""What does a node server do next? Pure: stimuli in, instructions out; no socket, thread, clock or file.

node_state  all decisions of a node: `handle` and `step`; it turns features on
core        the steps of one node, as far as it needs no feature
stimuli     what happens to a node
state       words and state that all share, and the hooks of features
epochs      when an epoch begins and ends
draws       when a draw is answered, and with what
reads       what is read next
cache       the memory cache and the cache folder
peers       feature: several nodes
sharing     feature: jobs that share reads
online      feature: orders that are decided while jobs draw
decoding    feature: server-side decoding
"""
