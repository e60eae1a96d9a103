"""Kernels of the exporters: numba, ``nogil``, on numpy arrays alone."""
