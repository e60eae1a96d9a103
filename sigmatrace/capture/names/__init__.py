"""Canonical names of endpoints, layer by layer."""
