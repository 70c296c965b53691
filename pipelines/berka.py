"""A Czech bank, of the PKDD 1999 challenge ("Berka"): accounts, clients, cards, loans, orders, transactions, districts.

Get the files district.asc … from the CTU relational repository (public for research) or a copy of it, and name their
folder:

    python pipelines/berka.py berka [--rows N] [--compare]

An account is protected, with all that is its own: clients (who disposes of it), their cards, its loan, standing orders
and transactions. Districts are public. A disposition joins one client to one account, so both are one row here. Dates
are told as years and months. Domains are from the description of the challenge; money is in bins of a public grid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from databases import Rows, Tables, belonging, main, number, texts

NAMES = ("district", "account", "client", "disp", "card", "loan", "order")


def prepare(source: Path, rows: int | None = None) -> Tables:
    read = {name: texts(source / f"{name}.asc", ";") for name in NAMES}
    accounts = read["account"][:rows]
    mine = {name: belonging(read[name], "account_id", accounts) for name in ("disp", "loan", "order")}
    people = {row["client_id"]: row for row in read["client"]}
    clients = [_client(row, people[row["client_id"]]) for row in mine["disp"]]
    transactions = texts(next(source.glob("trans*.asc")), ";")
    return {
        "districts": [_district(row) for row in read["district"]],
        "accounts": [{**_whole(row, "account_id district_id"), "frequency": row["frequency"], **_date(row["date"])}
                     for row in accounts],
        "clients": clients,
        "cards": [{**_whole(row, "disp_id"), "type": row["type"], **_date(row["issued"])}
                  for row in belonging(read["card"], "disp_id", mine["disp"])],
        "loans": [{**_whole(row, "account_id"), "duration": row["duration"], "amount": number(row["amount"]),
                   "status": row["status"], **_date(row["date"])} for row in mine["loan"]],
        "orders": [{**_whole(row, "account_id"), "bank": row["bank_to"], "amount": number(row["amount"]),
                    "symbol": row["k_symbol"].strip() or None} for row in mine["order"]],
        "transactions": _transactions(belonging(transactions, "account_id", accounts)),
    }  # fmt: skip


def _transactions(rows: Rows) -> Rows:
    return [{**_whole(row, "account_id"), "type": row["type"], "operation": row["operation"].strip() or None,
             "symbol": row["k_symbol"].strip() or None, "amount": number(row["amount"]),
             "balance": number(row["balance"]), "month": int(row["date"][2:4])} for row in rows]  # fmt: skip


def _whole(row: dict[str, str], names: str) -> dict[str, Any]:
    return {name: int(row[name]) for name in names.split()}


def _date(text: str) -> dict[str, Any]:
    """YYMMDD, with or without a time."""
    return {"year": 1900 + int(text[:2]), "month": int(text[2:4])}


def _client(disposition: dict[str, str], client: dict[str, str]) -> dict[str, Any]:
    """Born on YYMMDD; women's months are told with 50 more."""
    born = client["birth_number"]
    told = {"born": 1900 + int(born[:2]), "sex": "F" if int(born[2:4]) > 50 else "M"}
    return {**_whole(disposition, "disp_id account_id"), "type": disposition["type"], **_whole(client, "district_id"),
            **told}  # fmt: skip


def _district(row: dict[str, str]) -> dict[str, Any]:
    """What A1, A2 … mean is told in the challenge's description; a rate may be missing."""
    return {"district_id": int(row["A1"]), "name": row["A2"], "region": row["A3"], "people": int(row["A4"]),
            "salary": int(row["A11"]), "jobless": number(row["A12"])}  # fmt: skip


if __name__ == "__main__":
    main("berka", ("job",), prepare)
