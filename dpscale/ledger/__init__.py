"""The budget ledger: what was spent on each dataset, in one file of SQLite on the driver's disk, outside Dask.

`book` is what others use. Under it: `file` and `schema` (the SQLite file), `place` (where it may be), `rows` (its rows
in SQL), `account` (a dataset's rows read), `cap` (what a dataset may come to) and `statement` (an account told).
"""

from dpscale.ledger.book import CapChange, Ledger

__all__ = ["CapChange", "Ledger"]
