"""Tests of brand.simulate."""
