"""Capture: native shims, the launcher, and the reader of trace files."""
