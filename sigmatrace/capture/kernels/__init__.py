"""Compiled kernels of the reader; they import numpy and numba alone."""
