"""How does Brand compare with the libraries it would replace? One file asks one question; README.md tells how to run them."""
