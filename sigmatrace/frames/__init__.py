"""Tables of a run as frames: Arrow, pandas and Polars, for notebooks and scripts."""
