"""Judges that are independent of the trace."""
