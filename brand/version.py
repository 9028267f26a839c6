"""The version of Brand."""

__version__ = "0.2.0"
