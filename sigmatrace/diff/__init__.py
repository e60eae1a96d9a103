"""Two sides of runs, or of windows of them, compared: what changed, and whether that is noise."""
