"""A catalogue on disk: its tables as JSONL or Parquet files, read and written as Arrow tables."""
