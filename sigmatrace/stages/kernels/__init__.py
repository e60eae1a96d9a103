"""Numba kernels on numpy arrays; no I/O, no Arrow."""
