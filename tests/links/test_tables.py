"""`dpscale tables`: key and degree statistics against pandas; conversion from and to SDV metadata."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.job import Job
from tests.links.small import make_frames, make_job, table_section, write_job

HOTELS: dict[str, Any] = {
    "METADATA_SPEC_VERSION": "V1",
    "tables": {
        "hotels": {"primary_key": "hotel_id", "columns": {
            "hotel_id": {"sdtype": "id"}, "city": {"sdtype": "categorical"}, "rating": {"sdtype": "numerical"}}},
        "guests": {"primary_key": "email", "columns": {
            "email": {"sdtype": "email"}, "home": {"sdtype": "id"}, "room": {"sdtype": "categorical"},
            "phone": {"sdtype": "phone_number"}, "in": {"sdtype": "datetime", "datetime_format": "%d %b %Y"}}},
        "meals": {"primary_key": "meal", "columns": {"meal": {"sdtype": "id"}, "hot": {"sdtype": "boolean"}}},
        "ate": {"columns": {"who": {"sdtype": "id"}, "what": {"sdtype": "id"}}},
    },
    "relationships": [
        {"parent_table_name": parent, "parent_primary_key": key, "child_table_name": child, "child_foreign_key": column}
        for parent, key, child, column in (("hotels", "hotel_id", "guests", "home"), ("guests", "email", "ate", "who"),
                                           ("meals", "meal", "ate", "what"))
    ],
}  # fmt: skip


def run_command(*arguments: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def make_odd_frames() -> dict[str, pd.DataFrame]:
    """Return a shop with a null key, duplicate keys, a null foreign key and orphans."""
    found = make_frames()
    persons = found["persons"].assign(id=found["persons"].id.where(found["persons"].index != 299))
    orders = found["orders"].assign(person=found["orders"].person.where(found["orders"].index > 2))
    orders.loc[5:8, "person"] = "nobody"
    return found | {"persons": pd.concat([persons, persons.head(4)]), "orders": orders}


def test_check_equals_pandas_and_writes_nothing(tmp_path: Path) -> None:
    data = make_odd_frames()
    done = run_command(
        "check", "tables", write_job(tmp_path, data=data, parts=3), "--scheduler", "synchronous", "--json"
    )
    assert "PRIVATE" in done.stderr
    checked = json.loads(done.stdout)
    found = {one["name"]: one for one in checked["tables"]}
    assert found["persons"] == {"name": "persons", "public": False, "rows": 304, "null_keys": 1, "duplicate_keys": 4}
    assert (found["orders"]["rows"], found["orders"]["null_keys"]) == (len(data["orders"]), None)
    link = next(one for one in checked["links"] if one["name"] == "orders")
    persons, orders = data["persons"].id.dropna().unique(), data["orders"].person.dropna()
    each = orders.value_counts().reindex(persons).fillna(0)
    assert (link["null_ends"], link["dangling"]) == (3, int((~orders.isin(persons)).sum()))
    spread = {f"{q}%": each.quantile(q / 100, "higher") for q in (50, 90, 99)} | {"max": each.max()}
    assert link["degrees"]["parent"] == {"rows": 299, "none": int((each == 0).sum()),
                                         "mean": pytest.approx(each.mean()), **spread}  # fmt: skip
    assert link["links_beyond"] == (each - 6).clip(lower=0).sum()
    assert [one["beyond_is"] for one in checked["links"]] == ["cut", "cut", "any number"]
    assert not list(tmp_path.glob("ledger*"))
    assert not (tmp_path / "runs").exists()


def test_check_predicts_refusals(tmp_path: Path) -> None:
    link = make_job()["link"][1] | {"protects": "both", "max_degree": 3}
    tables = {"persons": table_section("persons", "id"), "products": table_section("products", "code")}
    text = run_command("check", "tables", write_job(tmp_path, tables=tables, link=[link])).stdout
    assert "exceed it and would be refused" in text
    assert "child degree: mean" in text


def test_sdv_metadata_round_trip_through_draft_job(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text(json.dumps(HOTELS))
    text = run_command("job", "from-sdv", tmp_path / "metadata.json", "--data", "there").stdout
    assert "# guests.domain.toml: room (categorical), in (datetime)\n" in text
    assert "Only one of hotels, meals can be the protected table" in text
    content = tomllib.loads(text)
    assert list(content["tables"]) == ["hotels", "guests", "meals"]
    for name, column in (("hotels", "city"), ("guests", "room"), ("meals", "hot")):
        (tmp_path / f"{name}.domain.toml").write_text(f'[attributes.{column}]\nkind = "coded"\nsize = 2\n')
    content["tables"]["hotels"]["public"] = content["tables"]["meals"]["public"] = True
    (tmp_path / "job.toml").write_text(tomli_w.dumps(content))
    read = Job.read(tmp_path / "job.toml")
    assert [(one.called, one.parent, one.child) for one in read.link] == [("guests", "hotels", "guests"),
                                                                          ("ate", "guests", "meals")]  # fmt: skip
    run_command("plan", tmp_path / "job.toml")
    back = json.loads(run_command("job", "to-sdv", tmp_path / "job.toml").stdout)
    assert back["relationships"] == HOTELS["relationships"]
    assert back["tables"]["ate"] == HOTELS["tables"]["ate"]
    assert back["tables"]["guests"]["primary_key"] == "email"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no", "is not JSON"),
        ({"tables": {}}, "no tables"),
        (HOTELS | {"METADATA_SPEC_VERSION": "SINGLE_TABLE_V1"}, "an unknown version"),
        (HOTELS | {"tables": {"a b": {}}}, "letters, digits"),
        (HOTELS | {"tables": {"hotels": {}}}, "a table 'guests'"),
        (
            HOTELS | {"relationships": [HOTELS["relationships"][0] | {"child_foreign_key": ["a", "b"]}]},
            "several columns",
        ),
    ],
)
def test_invalid_metadata_is_refused_in_one_sentence(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "metadata.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    done = run_command("job", "from-sdv", path, code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
