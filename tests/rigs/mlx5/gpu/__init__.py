"""What is said of GPU-initiated operations, on a real GPU: ``make gpu-test``.

All steps also run on the stand-in for the CUDA driver, with small numbers; that is their test.
Needs the standard library, numpy and msgpack alone.
"""
