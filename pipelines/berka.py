"""A Czech bank, of the PKDD 1999 challenge ("Berka"): accounts, clients, cards, loans, orders, transactions, districts.

Get the files district.asc … from the CTU relational repository (public for research) or a copy of it, and pass their
folder:

    python pipelines/berka.py berka [--rows N] [--compare]

An account is protected with all its rows: clients (who disposes of it), their cards, its loan, standing orders and
transactions. Districts are public. A disposition joins one client to one account, so that both are one row here. Dates
are reduced to years and months. Domains follow the description of the challenge; money is in bins of a public grid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from databases import Rows, Tables, main, parse_number, read_texts, select_related

NAMES = ("district", "account", "client", "disp", "card", "loan", "order")


def prepare(source: Path, rows: int | None = None) -> Tables:
    read = {name: read_texts(source / f"{name}.asc", ";") for name in NAMES}
    accounts = read["account"][:rows]
    mine = {name: select_related(read[name], "account_id", accounts) for name in ("disp", "loan", "order")}
    people = {row["client_id"]: row for row in read["client"]}
    clients = [_client(row, people[row["client_id"]]) for row in mine["disp"]]
    transactions = read_texts(next(source.glob("trans*.asc")), ";")
    return {
        "districts": [_district(row) for row in read["district"]],
        "accounts": [{**_integers(row, "account_id district_id"), "frequency": row["frequency"], **_date(row["date"])}
                     for row in accounts],
        "clients": clients,
        "cards": [{**_integers(row, "disp_id"), "type": row["type"], **_date(row["issued"])}
                  for row in select_related(read["card"], "disp_id", mine["disp"])],
        "loans": [{**_integers(row, "account_id"), "duration": row["duration"], "amount": parse_number(row["amount"]),
                   "status": row["status"], **_date(row["date"])} for row in mine["loan"]],
        "orders": [{**_integers(row, "account_id"), "bank": row["bank_to"], "amount": parse_number(row["amount"]),
                    "symbol": row["k_symbol"].strip() or None} for row in mine["order"]],
        "transactions": _transactions(select_related(transactions, "account_id", accounts)),
    }  # fmt: skip


def _transactions(rows: Rows) -> Rows:
    return [{**_integers(row, "account_id"), "type": row["type"], "operation": row["operation"].strip() or None,
             "symbol": row["k_symbol"].strip() or None, "amount": parse_number(row["amount"]),
             "balance": parse_number(row["balance"]), "month": int(row["date"][2:4])} for row in rows]  # fmt: skip


def _integers(row: dict[str, str], names: str) -> dict[str, Any]:
    return {name: int(row[name]) for name in names.split()}


def _date(text: str) -> dict[str, Any]:
    """Return year and month of YYMMDD, with or without a time."""
    return {"year": 1900 + int(text[:2]), "month": int(text[2:4])}


def _client(disposition: dict[str, str], client: dict[str, str]) -> dict[str, Any]:
    """Return the client of a disposition: the birth number is YYMMDD, with 50 added to the month for women."""
    born = client["birth_number"]
    person = {"born": 1900 + int(born[:2]), "sex": "F" if int(born[2:4]) > 50 else "M"}
    return {**_integers(disposition, "disp_id account_id"), "type": disposition["type"],
            **_integers(client, "district_id"), **person}  # fmt: skip


def _district(row: dict[str, str]) -> dict[str, Any]:
    """Return a district; the description of the challenge explains A1, A2, …, and a rate may be missing."""
    return {"district_id": int(row["A1"]), "name": row["A2"], "region": row["A3"], "people": int(row["A4"]),
            "salary": int(row["A11"]), "jobless": parse_number(row["A12"])}  # fmt: skip


if __name__ == "__main__":
    main("berka", ("job",), prepare)
