"""Budget ledger: the privacy cost of every release per dataset, in a SQLite file or a PostgreSQL schema.

Other packages use `book`, whose methods that change nothing are in `reader`. Below it, `store` defines the database
interface, implemented by `sqlite_store` with `sqlite_schema` and by `postgres_store` with `postgres_schema`. `location`
checks where a ledger may be, `transfer` moves a history, `request` checks a charge and `cap_request` a cap, `rows`
contains the SQL, `account` composes the rows of one dataset, `filters` has one account for the total and one for each
period of the data (`periods`), `cap` compares them with their caps, `refusal` explains a refused charge, `chain` is the
hash chain over the entries, `job_entry` recognises a job that was released before, and `statement` formats an account.
"""

from dpscale.ledger.book import Ledger
from dpscale.ledger.cap import CapChange

__all__ = ["CapChange", "Ledger"]
