"""How does Brand compare with the libraries that it would replace? Each file asks one question.

README.md tells how to run the files.
"""
