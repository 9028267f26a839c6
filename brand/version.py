"""Which version of Brand is this?"""

__version__ = "0.2.0"
