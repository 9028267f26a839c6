"""Tests of bench.papers."""
