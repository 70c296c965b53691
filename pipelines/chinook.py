"""Chinook: a music shop as a SQLite file (github.com/lerocha/chinook-database, MIT). Pass the file:

    python pipelines/chinook.py Chinook_Sqlite.sqlite [--job customers|employees] [--rows N] [--compare]

Every table is exported to Parquet with sqlite3 and pyarrow. customers: a customer is protected with all invoices and
their lines; the tracks in the lines are a public catalogue. employees: an employee is protected, and the manager of an
employee is a link within one table. The shop is fictitious and tiny: its noise is larger than its signal.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from databases import Rows, Tables, main, select_related

TRACKS = """SELECT TrackId, Genre.Name AS Genre, MediaType.Name AS Media, Milliseconds / 1000.0 AS Seconds, UnitPrice
            FROM Track JOIN Genre USING (GenreId) JOIN MediaType USING (MediaTypeId)"""
INVOICES = """SELECT InvoiceId, CustomerId, CAST(strftime('%Y', InvoiceDate) AS INTEGER) AS Year,
              CAST(strftime('%m', InvoiceDate) AS INTEGER) AS Month, Total FROM Invoice"""
CUSTOMERS = "SELECT CustomerId, Country, Company IS NOT NULL AS Company FROM Customer ORDER BY CustomerId"
LINES = "SELECT InvoiceLineId, InvoiceId, TrackId, UnitPrice, Quantity FROM InvoiceLine"
EMPLOYEES = """SELECT EmployeeId, ReportsTo, Title, City, CAST(strftime('%Y', HireDate) AS INTEGER) AS Hired
               FROM Employee ORDER BY EmployeeId"""


def prepare(source: Path, rows: int | None = None) -> Tables:
    with closing(sqlite3.connect(f"file:{source.resolve(strict=True)}?mode=ro&immutable=1", uri=True)) as shop:
        customers = query(shop, CUSTOMERS)[:rows]
        invoices = select_related(query(shop, INVOICES), "CustomerId", customers)
        return {
            "customers": customers,
            "invoices": invoices,
            "lines": select_related(query(shop, LINES), "InvoiceId", invoices),
            "tracks": query(shop, TRACKS),
            "employees": query(shop, EMPLOYEES),
        }


def query(shop: Any, text: str) -> Rows:
    found = shop.execute(text)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


if __name__ == "__main__":
    main("chinook", ("customers", "employees"), prepare)
