"""How do several machines convert one folder, if they share only a folder that all of them see?

planning    one plan for all machines               job         the contents of the plan
running     one chunk, by any process               parts       a task: some of the chunks
sealing     from the chunks to the data set
"""
