"""Whole models with libattn's attention, beside eager attention and PyTorch's SDPA: python -m bench.e2e --help."""
