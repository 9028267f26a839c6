"""The command `brand`: one file a verb, no logic; results on stdout, everything else on stderr. The only room with
click and rich.

main       the group, exit codes              output     progress, tables, JSON, numbers for people
convert    images, audio                      info, verify, unpack, cat, reindex
"""
