"""Budget ledger: the privacy cost of every release per dataset, in a SQLite file or a PostgreSQL schema.

Other packages use `book`. Below it, `store` defines the database interface, implemented by `sqlite_store` and by
`postgres_store` with the tables of `schema`. `location` checks where a ledger may be, `transfer` moves a history,
`request` checks a charge or a cap, `rows` contains the SQL, `account` composes the rows of one dataset in total and for
each period of the data and compares them with their caps, and `chain` is the hash chain over the entries.
"""

from dpscale.ledger.account import CapChange
from dpscale.ledger.book import Ledger

__all__ = ["CapChange", "Ledger"]
