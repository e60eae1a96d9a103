"""Shows traces and reports in a browser, with Perfetto's own user interface, without a network."""
