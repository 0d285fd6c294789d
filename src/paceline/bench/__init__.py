"""Demonstrations and benchmarks: what speculation gains, measured against plain decoding in the same run."""
