"""Benchmarks: where their items come from."""
