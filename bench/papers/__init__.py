"""Do the systems of the papers, simulated here, yield the figures that the papers print?

`python -m bench.papers` prints both.

scene, demand, policies, clock, cells     the simulator of HDMLP and Lobster; `scenes` has the papers' numbers
show_scene                                one scene (python -m bench.papers.show_scene NAME)
frequency, reuse, hits, threads           the theory of these papers
allotment                                 threads for the queues of a node, by Lobster and by other rules
theory, breakdown, joader                 sections of `python -m bench.papers`, with the published figures
"""
