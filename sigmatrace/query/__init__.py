"""SQL over a run: its Parquet files by DuckDB, its trace by Perfetto's trace_processor."""
