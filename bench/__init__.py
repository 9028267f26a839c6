"""How does Brand compare with what it would replace? One file asks one question; README.md tells how to run them."""
