"""The configuration tree of sigmatrace-pipeline."""
