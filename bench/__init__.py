"""How does Brand compare with what it would replace? Each file asks one question; README.md tells how to run it."""
