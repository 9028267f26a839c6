"""The loop of a data server, its threads and its sockets: this package executes the decisions of `brand.node.decide`.

server          the loop
requests        turns messages of clients into stimuli
clients         connections of clients
lifetime        how long a server lives that a training has started
exchange        turns messages of other nodes into stimuli
work            plans, reads and writes, in threads
executor        the threads
decode_workers  the processes that decode samples
decode_worker   such a process
recording       a log of all decisions, and its replay
reports         statistics that no decision depends on, made of the next four
loops           what training loops report: their waits and their progress
progress        how fast trainings are, how far, and which rank is slow
why             why a step waits
gauges          reads against the limit of the storage, and memory
troubles        warnings about failing or slow storage
repeats         limits the log lines about similar events
http            the port for browsers and Prometheus
http_heads      reads the requests of that port, of silent clients too
metrics         statistics in the format of Prometheus
process         the process that a training starts
"""
