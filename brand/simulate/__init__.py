"""What would a run cost, before it is run? Decisions over plans are counted, and clocks turn the counts into time.

Runs of Brand: `running` (the work of each node), `pace` (its clock), `storages`, and `whatif` (the answers). Systems of
the papers: `scene`, `demand`, `policies`, `clock`, and their theory: `frequency`, `reuse`, `hits`, `threads`.
"""
