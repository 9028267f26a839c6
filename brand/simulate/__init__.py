"""What would a run cost, before it is run? Decisions over plans are counted, and clocks turn the counts into time.

`running` (the work of each node), `pace` (its clock), `storages`, `whatif` (the answers); `together` (several jobs).
"""
