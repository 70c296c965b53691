"""Unusual tables: empty ones, other key types, duplicate names. Each is released or refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpscale as dp
from tests.links.small import make_frames, make_job, table_section, write_job
from tests.messages import refused

SHOP, LINKS, TABLES = make_frames(), make_job()["link"], make_job()["tables"]
BOUND = LINKS[0]["max_degree"]
DAYS = pd.date_range("2020-01-01", periods=5)


def change_table(name: str, change: Any) -> dict[str, Any]:
    return {"data": SHOP | {name: change(SHOP[name])}}


@pytest.mark.parametrize(
    "given",
    [
        change_table("products", lambda rows: rows.head(0)),
        change_table("products", lambda rows: rows.assign(code=rows.code.where(rows.index > 0))),
        change_table("products", lambda rows: pd.concat([rows, rows.head(1)])),
        change_table("products", lambda rows: rows.drop(columns="kind")),
        {"link": [LINKS[0] | {"child_key": "month"}, *LINKS[1:]]},
        {"link": [LINKS[0] | {"kind": "one-to-one"}, *LINKS[1:]]},
        {"link": [LINKS[0], LINKS[1] | {"name": "persons"}, LINKS[2]]},
        {"link": [*LINKS, {"kind": "one-to-many", "parent": "persons", "child": "products", "child_key": "label"}]},
        {"tables": TABLES | {"persons": table_section("persons") | {"key": ["id", "age2"]}}},
    ],
)  # fmt: skip
def test_invalid_tables_are_refused_in_one_sentence(tmp_path: Path, given: dict[str, Any]) -> None:
    path = write_job(tmp_path, **given)
    with refused(dp.DpscaleError) as found:
        dp.run(path, tmp_path / "run")
    assert "\n" not in str(found.value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"orders": SHOP["orders"].head(0)}, id="no children", marks=pytest.mark.slow),
        pytest.param({"ratings": SHOP["ratings"].head(0)}, id="no pairs", marks=pytest.mark.slow),
        pytest.param({name: SHOP[name].head(0) for name in ("persons", "orders", "ratings")}, id="nobody"),
        pytest.param({"countries": SHOP["countries"].assign(country=DAYS),
                      "persons": SHOP["persons"].assign(country=DAYS[SHOP["persons"].country])}, id="keys are days"),
        pytest.param({"persons": SHOP["persons"].assign(country=SHOP["persons"].country.astype(float))}, id="floats",
                     marks=pytest.mark.slow),
        pytest.param({"persons": SHOP["persons"].assign(country=SHOP["persons"].country.astype(str))}, id="texts"),
    ],
)  # fmt: skip
def test_unusual_tables_are_released(tmp_path: Path, change: dict[str, pd.DataFrame]) -> None:
    mild = {"privacy": {"privacy_cost": 100.0, "dataset": "shop", "allow_weak_privacy": True}}
    release = dp.run(write_job(tmp_path, mild, SHOP | change), tmp_path / "run")
    found = {name: frame.compute() for name, frame in release.synthetic().items()}
    owners, room = found["orders"].person, BOUND * len(found["persons"])
    assert owners.dropna().isin(found["persons"].id).all()
    assert owners.isna().sum() == max(len(owners) - room, 0)  # noise may leave more children than parents have room for
    assert found["persons"].country.isin(found["countries"].country).all()
    for name, frame in change.items():
        assert abs(len(found[name]) - len(frame)) < 20
