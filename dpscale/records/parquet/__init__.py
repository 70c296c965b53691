"""Compiled loops over the bytes of Parquet files: footers, pages, levels and packed values.

They are independent of tables and domains, and validate everything that they read from a file.
"""
