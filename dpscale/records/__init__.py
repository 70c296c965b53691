"""Readers that encode tables (Parquet, CSV, Arrow, Delta, Iceberg) as cell numbers.

No other package reads records. `Table` lists files without reading them, `encode` converts a column to cell numbers row
by row, and `snapshot` identifies the bytes that were read.
"""

from dpscale.records.table import Partition, Table

__all__ = ["Partition", "Table"]
