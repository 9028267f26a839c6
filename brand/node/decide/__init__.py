"""What does a data server do next? Pure decisions: stimuli in, instructions out; no socket, thread, clock or file.

node_state  all decisions of a node: `handle` and `step`; it turns features on
core        the steps of one node without features
stimuli     the events on which a node decides
state       vocabulary and state that all decisions share, and the hooks of features
epochs      when an epoch begins and ends
draws       when a draw is answered, and with which samples
reads       which samples are read next
cache       the memory cache and the cache folder
peers       feature: several nodes
sharing     feature: jobs that share reads
online      feature: orders that are decided while jobs draw
decoding    feature: server-side decoding
"""
