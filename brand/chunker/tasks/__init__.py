"""How do several machines convert one folder, with nothing between them but a folder that all of them see?

planning    one plan for all machines               job         the contents of the plan
running     one chunk, by any process               parts       a task: a share of the chunks
sealing     from the chunks to the data set
"""
