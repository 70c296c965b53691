"""The budget ledger: what was spent on each dataset, in SQLite on the driver's disk or on a PostgreSQL server.

`book` is what others use. Under it: `store` (what it needs of a database), of which there are `file` and `schema` (the
SQLite file) and `server`, `serverschema` and `address` (PostgreSQL); `place` (where it may be), `moving` (a history
moved), `request` (a charge asked for), `rows` (in SQL), `account` (a dataset's rows read), `cap` (what a dataset may
come to) and `statement` (an account told).
"""

from dpscale.ledger.book import CapChange, Ledger

__all__ = ["CapChange", "Ledger"]
