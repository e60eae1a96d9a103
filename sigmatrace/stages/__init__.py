"""Stages of the correlation."""
