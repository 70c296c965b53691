"""The address of a ledger on a PostgreSQL server: `postgresql://HOST[:PORT]/DATABASE`, and never who opens it.

An address stands in job files, run directories and errors, so it holds no credentials. They are libpq's own: PGUSER,
PGPASSWORD, PGPASSFILE or ~/.pgpass, PGSSLCERT and so on, of the process that opens the ledger. No sentence here repeats
an address that is refused.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from dpscale.base.errors import JobError
from dpscale.ledger.store import FIELD

SCHEME = "postgresql"
TAKES = "a file, or postgresql://HOST/DATABASE"
OPTIONS = ("host", "port", "sslmode", "sslrootcert")  # none of them a secret
FROM_ENVIRONMENT = "leave them out and set PGUSER and PGPASSWORD, or PGPASSFILE, in the environment"
NUL = "\0"


def is_address(ledger: object) -> bool:
    """Whether it is written as an address, of whatever kind, and not as a path."""
    return isinstance(ledger, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", ledger) is not None


def checked_address(ledger: str) -> str:
    """The address as it is; JobError for what is none, or holds credentials."""
    connection(ledger)
    return ledger


def connection(ledger: str) -> dict[str, Any]:
    """What libpq is told of an address; JobError as `checked_address`."""
    try:
        parts = urlsplit(ledger)
        port, strict = parts.port, bool(parts.query)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=strict))
    except ValueError:  # its text would repeat the address
        raise _refused("an address that cannot be read", "mend it") from None
    _check(ledger, parts.scheme, "@" in parts.netloc or bool(parts.fragment), options)
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database or NUL in database or "=" in database:
        raise _refused("an address that names no database", "name one: postgresql://HOST/DATABASE")
    named = {"host": unquote(parts.hostname or ""), "port": str(port or ""), "dbname": database}
    return {name: value for name, value in (named | options).items() if value}


def _check(ledger: str, scheme: str, credentials: bool, options: dict[str, str]) -> None:
    if scheme != SCHEME:
        raise _refused(f"an address of {scheme}://", f"write {SCHEME}://, or the path of a file")
    if credentials or {"user", "password", "passfile"} & options.keys():
        raise _refused("an address with a user's name or a password in it", FROM_ENVIRONMENT)
    if strangers := sorted(options.keys() - set(OPTIONS)):
        raise _refused(f"an address with {len(strangers)} options that are not known",
                       f"keep to {', '.join(OPTIONS)}; libpq takes the others from the environment")  # fmt: skip
    if not ledger.isprintable():
        raise _refused("an address with a letter that is none", "mend it")


def _refused(got: str, remedy: str) -> JobError:
    return JobError(FIELD, f"got {got}", TAKES, remedy)


def driver() -> Any:
    """The module psycopg; JobError where it is not installed."""
    try:
        import psycopg
    except ImportError:
        raise JobError(FIELD, "names a PostgreSQL server, and psycopg cannot be imported here",
                       "psycopg 3", 'install it: pip install "dpscale[postgres]"') from None  # fmt: skip
    return psycopg
