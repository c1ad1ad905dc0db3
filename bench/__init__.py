"""Benchmarks: ratios against a peer or a physical limit, both measured in the same run."""
