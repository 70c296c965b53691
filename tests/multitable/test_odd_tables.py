"""Tables as they come: empty ones, other types of keys, names twice. A run, or a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpscale as dp
from tests.multitable.small import frames, job, table, write

SHOP, LINKS, TABLES = frames(), job()["link"], job()["tables"]
BOUND = LINKS[0]["max_degree"]
DAYS = pd.date_range("2020-01-01", periods=5)


def public(name: str, change: Any) -> dict[str, Any]:
    return {"data": SHOP | {name: change(SHOP[name])}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (public("products", lambda rows: rows.head(0)), "no rows"),
        (public("products", lambda rows: rows.assign(code=rows.code.where(rows.index > 0))), "a null or duplicate key"),
        (public("products", lambda rows: pd.concat([rows, rows.head(1)])), "a null or duplicate key"),
        (public("products", lambda rows: rows.drop(columns="kind")), "no column 'kind'"),
        ({"link": [LINKS[0] | {"child_key": "month"}, *LINKS[1:]]}, "'month', which is in the domain"),
        ({"link": [LINKS[0] | {"kind": "one-to-one"}, *LINKS[1:]]}, "max_degree of a one-to-one link is 1"),
        ({"link": [LINKS[0], LINKS[1] | {"name": "persons"}, LINKS[2]]}, "'persons', which is a table"),
        (
            {"link": [*LINKS, {"kind": "one-to-many", "parent": "persons", "child": "products", "child_key": "label"}]},
            "a public table, as the child",
        ),
        ({"tables": TABLES | {"persons": table("persons") | {"key": ["id", "age2"]}}}, "differs in length"),
    ],
)  # fmt: skip
def test_what_cannot_be_released_is_one_sentence(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    path = write(tmp_path, **given)
    with pytest.raises(dp.DpscaleError, match=said) as found:
        dp.run(path, tmp_path / "run")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"orders": SHOP["orders"].head(0)}, id="no children"),
        pytest.param({"ratings": SHOP["ratings"].head(0)}, id="no pairs"),
        pytest.param({name: SHOP[name].head(0) for name in ("persons", "orders", "ratings")}, id="nobody"),
        pytest.param({"countries": SHOP["countries"].assign(country=DAYS),
                      "persons": SHOP["persons"].assign(country=DAYS[SHOP["persons"].country])}, id="keys are days"),
        pytest.param({"persons": SHOP["persons"].assign(country=SHOP["persons"].country.astype(float))}, id="floats"),
        pytest.param({"persons": SHOP["persons"].assign(country=SHOP["persons"].country.astype(str))}, id="texts"),
    ],
)  # fmt: skip
def test_tables_as_they_come_are_released(tmp_path: Path, change: dict[str, pd.DataFrame]) -> None:
    mild = {"privacy": {"privacy_cost": 100.0, "dataset": "shop", "allow_weak_privacy": True}}
    release = dp.run(write(tmp_path, mild, SHOP | change), tmp_path / "run")
    found = {name: frame.compute() for name, frame in release.synthetic().items()}
    owners, room = found["orders"].person, BOUND * len(found["persons"])
    assert owners.dropna().isin(found["persons"].id).all()
    assert owners.isna().sum() == max(len(owners) - room, 0)  # noise may leave more children than parents have room for
    assert found["persons"].country.isin(found["countries"].country).all()
    for name, frame in change.items():
        assert abs(len(found[name]) - len(frame)) < 20
