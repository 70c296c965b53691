"""The compiled loops over the bytes of Parquet files: footers, pages, levels, packed values. They know no table and no
domain, and trust nothing that a file says."""
