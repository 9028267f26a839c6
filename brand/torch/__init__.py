"""What a PyTorch training script sees. The only room that imports torch.

dataset     BrandDataset: a map-style data set of exact reads
"""

from __future__ import annotations

from brand.errors import MissingExtraError

try:
    import torch as torch
except ImportError as error:
    raise MissingExtraError("brand.torch needs PyTorch: pip install 'brand-data[train]'") from error

from brand.torch.dataset import BrandDataset as BrandDataset

__all__ = ["BrandDataset"]
