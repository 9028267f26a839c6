"""Which version of Brand is this?"""

__version__ = "0.1.0"
