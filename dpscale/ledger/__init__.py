"""Budget ledger: the privacy cost of every release per dataset, in a SQLite file or a PostgreSQL schema.

Other packages use `book`. Below it, `store` defines the database interface, implemented by `sqlite_store` with
`sqlite_schema` and by `postgres_store` with `postgres_schema`. `location` checks where a ledger may be, `transfer`
moves a history, `request` checks a charge, `rows` contains the SQL, `account` composes the rows of one dataset and
compares them with its cap, `chain` is the hash chain over the entries, and `statement` formats an account.
"""

from dpscale.ledger.book import CapChange, Ledger

__all__ = ["CapChange", "Ledger"]
