"""The costs of a run before it is run: decisions over plans are counted, and clocks turn the counts into time.

`running` (the work of each node), `pace` (its clock), `storages`, `whatif` (the answers); `together` (several jobs),
`following`, `rounds` (their draws and reads).
"""
