"""Test tools that ship with the package: synthetic runs with known truth."""
