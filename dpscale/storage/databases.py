"""Addresses of tables and queries in databases: `duckdb:///shop.db?table=visits`.

An address names a database, and a table or a query in it. It is part of manifests, logs, tasks and errors and therefore
has no password: credentials come from the environment, a service file of PostgreSQL, or an environment variable that
has the whole address of the database (`env://VISITS_DB?table=visits`). A refused address is never repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from dpscale.base.errors import DataError

FIELD = "data.database"
SERVERS, FILES, VARIABLE = ("postgresql",), ("duckdb", "sqlite"), "env"
WAREHOUSES = ("snowflake", "bigquery")  # whose addresses only an environment variable states
SCHEMES = (*SERVERS, *FILES, VARIABLE)
TAKES = "postgresql://HOST/NAME, duckdb:///FILE, sqlite:///FILE, or env:VARIABLE"
KEYS = ("table", "query", "partition_by")
OPTIONS = ("host", "hostaddr", "port", "user", "dbname", "service", "sslmode", "sslrootcert", "sslcert", "sslkey",
           "connect_timeout", "target_session_attrs", "application_name")  # fmt: skip
PLAIN = " /:,()*=<>'\".!|"  # letters of an address that need no escape


@dataclass(frozen=True)
class DatabaseAddress:
    """Address of the rows of a table or query.

    Attributes
    ----------
    scheme : str
    place : str
        Server and database, the path of a file, or the name of an environment variable.
    options : tuple of (str, str)
        Parameters of the connection.
    table, query : str
        One of them is given.
    partition_by : str
        Column of whole numbers whose ranges are read in parallel.
    """

    scheme: str
    place: str
    options: tuple[tuple[str, str], ...] = ()
    table: str = ""
    query: str = ""
    partition_by: str = ""

    @property
    def is_plain_table(self) -> bool:
        """Whether it names a table that is not divided by a column."""
        return bool(self.table) and not self.partition_by

    @property
    def is_file(self) -> bool:
        """Whether the database is a file, whose path is stated."""
        return self.scheme in FILES

    @property
    def database(self) -> str:
        """Address of the database."""
        return self._with(dict(self.options))

    def __str__(self) -> str:
        given = {name: value for name in KEYS if (value := getattr(self, name))}
        return self._with(dict(self.options) | given)

    def _with(self, parameters: Mapping[str, str]) -> str:
        place = f"/{self.place}" if self.is_file else self.place
        text = "&".join(f"{name}={quote(value, safe=PLAIN)}" for name, value in parameters.items())
        return f"{self.scheme}://{place}" + (f"?{text}" if text else "")


def is_database(path: str) -> bool:
    """Return whether a path is the address of rows in a database."""
    return path.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def read_address(text: str) -> DatabaseAddress:
    """Return the address that a text states. Raises DataError for a password or an unknown parameter."""
    found = _parsed(text)
    if bool(found.table.strip()) == bool(found.query.strip()):
        got = "both table and query" if found.table else "neither table nor query"
        raise DataError(FIELD, got, "one of them", "state table or query, in an address as ?table=NAME")
    return found


def _parsed(text: str) -> DatabaseAddress:
    """Return the parts of a text such as `postgresql://host/base?table=NAME`; refuse passwords and others.

    KEYS are the parameters that choose data and OPTIONS those of a connection; an option is allowed for servers only.
    Files are written with three slashes. "env:NAME" has become env://NAME before.
    """
    scheme, mark, rest = text.partition("://")
    if not mark or scheme not in SCHEMES:
        raise DataError(FIELD, f"an address of kind {scheme!r}" if mark and scheme.isalnum() else "no address", TAKES,
                        "fix it, or export the table to files")  # fmt: skip
    place, _, stated = rest.partition("?")
    # a plus sign in a query is no blank
    pairs = parse_qsl(stated.replace("+", "%2B"), keep_blank_values=True)
    keys = {name: value for name, value in pairs if name in KEYS}
    options = [(name, value) for name, value in pairs if name not in KEYS]
    # a password stands before the @ of the host, or among the parameters
    if scheme in SERVERS and (":" in place.partition("/")[0].rpartition("@")[0] or "password" in dict(pairs)):
        raise DataError(FIELD, f"a {scheme} address that contains a password", "an address without one",
                        'set PGPASSWORD or a service file, or name an environment variable: "env:NAME"')  # fmt: skip
    allowed = (*KEYS, *(OPTIONS if scheme in SERVERS else ()))
    is_repeated = len(dict(pairs)) < len(pairs)
    if is_repeated or any(name not in allowed for name, _ in pairs):
        raise DataError(FIELD, f"a {scheme} address with an unknown or repeated parameter",
                        f"table, query, partition_by, and for a server {', '.join(OPTIONS)}", "remove it")  # fmt: skip
    if scheme in FILES:
        if not place.startswith("/") or not place[1:]:
            raise DataError(FIELD, f"a {scheme} address without a file", f"{scheme}:///FILE", "write three slashes")
        place = place[1:]
    if scheme == VARIABLE and not re.fullmatch(r"[A-Za-z_]\w*", place):
        raise DataError(FIELD, "no name of an environment variable", "env:NAME", "name the variable")
    return DatabaseAddress(scheme, place, tuple(options), **keys)


def stated_address(keys: Mapping[str, Any]) -> str:
    """Return the address that the keys `database`, `table`, `query` and `partition_by` of a job state.

    A key that the address has too is refused. "env:NAME" is read like env://NAME.
    """
    for name, value in keys.items():
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"data.{name}", "no text", "a text", "fix it")
    if "database" not in keys:
        raise DataError(f"data.{next(iter(keys))}", "given without a database", TAKES, "set database")
    text = re.sub(rf"^{VARIABLE}:(?!//)", f"{VARIABLE}://", keys["database"].strip())
    found = _parsed(text)
    given = {name: keys[name].strip() for name in KEYS if name in keys}
    if twice := [name for name in given if getattr(found, name)]:
        raise DataError(f"data.{twice[0]}", "given in the address too", "one of them", "remove one")
    return str(read_address(str(replace(found, **given))))


def located_database(folder: Path, address: str) -> str:
    """Return an address with the absolute path of its file; relative paths start at a folder.

    Addresses of servers stay unchanged, as do all addresses if the folder is remote.
    """
    found = read_address(address)
    if not found.is_file or "://" in str(folder):
        return address
    return str(replace(found, place=os.path.normpath(os.path.join(str(folder), found.place))))


def connection_of(address: DatabaseAddress) -> tuple[str, str]:
    """Return the kind of a database, and the address or path by which its driver opens it, which may have a password.

    Raises DataError if the environment variable of the address is not set, or has no address.

    An address of kind VARIABLE names an environment variable that has the address itself.
    """
    if address.is_file:
        return address.scheme, address.place
    if address.scheme != VARIABLE:
        return address.scheme, address.database
    stated = os.environ.get(address.place, "")
    scheme, _, rest = stated.partition("://")
    # another spelling of the same kind
    if scheme == "postgres":
        scheme = SERVERS[0]
    if scheme not in (*SERVERS, *FILES, *WAREHOUSES) or (scheme in FILES and not rest.startswith("/")):
        got = "is not set" if not stated else "has no such address"
        raise DataError(FIELD, f"the environment variable {address.place} {got}", TAKES.rpartition(",")[0],
                        "set it here and on every worker")  # fmt: skip
    return scheme, rest[1:] if scheme in FILES else f"{scheme}://{rest}"
