"""Rehearsals of containers: README's lines and `brand doctor` in environments as container runtimes make them."""
