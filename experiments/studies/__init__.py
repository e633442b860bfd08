"""Benchmarks: every speed as a ratio within one run."""
