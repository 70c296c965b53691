"""Read tables (Parquet, CSV, Arrow, Delta, Iceberg) into codes. No other package reads records.

`Table` lists files without reading them; `encode` turns a column into cell numbers row by row; `snapshot` identifies
the bytes that were read.
"""

from dpscale.records.table import Partition, Table

__all__ = ["Partition", "Table"]
