"""Feature: server-side decoding. What do decode workers do next?

preparing  what decode workers do next, and what a draw gets of it
preparers  which decode workers are there
wants      what clients want decoded
ahead      which samples are decoded next
allotting  for which rank a decode worker works next
allotment  how many threads each queue would get
costs      how long it takes to decode a sample
clearing   which decoded samples make room
"""
