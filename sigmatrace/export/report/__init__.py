"""The exporter ``report``: one HTML file for someone who has five minutes, and its figures."""
