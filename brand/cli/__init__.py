"""The command `brand`: one file a verb, no logic. Results go to stdout, everything else to stderr. Only this room
imports click and rich.

main       the group, exit codes              output     progress, tables, JSON, numbers for people
convert    images, audio                      info, verify, unpack, cat, reindex
doctor     can Brand work here?
"""
