"""Rules that `domain sketch` proposes: those of the records, by comparison with all pairs in pandas."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main


def visits(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    day = np.datetime64("2020-01-01") + rng.integers(0, 300, rows)
    part, rest = rng.integers(0, 40, rows), rng.integers(1, 30, rows)
    return pd.DataFrame({
        "admission": day, "discharge": pd.Series(day + rng.integers(0, 20, rows)).where(rng.random(rows) < 0.9),
        "part": part, "rest": rest, "whole": part + rest, "other": rng.integers(0, 100, rows),
        "ward": rng.choice(["a", "b"], rows), "year": np.full(rows, 2020) + rng.integers(0, 2, rows),
    })  # fmt: skip


WANTED = {"part + rest = whole", "admission <= discharge", "part <= whole", "rest <= whole"}


def test_rules_of_a_frame_are_those_that_hold() -> None:
    frame = visits()
    found = dp.sketch_domain(frame)
    assert set(found.rules) == WANTED
    frame.loc[7, "whole"] += 1
    frame.loc[9, "discharge"] = frame.admission[9] - pd.Timedelta(days=1)
    assert set(dp.sketch_domain(frame).rules) == {"part <= whole", "rest <= whole"}


def test_rules_hold_over_all_batches_and_are_private_comments(tmp_path: Path) -> None:
    frame = visits()
    for number in range(4):
        frame[number * 100 :][:100].to_parquet(tmp_path / f"{number}.parquet", index=False)
    done = CliRunner().invoke(main, ["domain", "sketch", str(tmp_path)])
    lines = [line for line in done.stdout.splitlines() if "holds in all records" in line]
    assert {line.split('rule = "')[1].split('"')[0] for line in lines} == WANTED
    assert all(line.startswith("# ") for line in lines)
    content = tomllib.loads(done.stdout)
    assert "rule" not in content
    domain = dp.Domain.from_dict(content | {"reviewed": True, "rule": [{"rule": rule} for rule in sorted(WANTED)]})
    assert domain.rule_texts == tuple(sorted(WANTED))


@pytest.mark.parametrize("rows", [0, 5])
def test_few_rows_have_no_rules(rows: int) -> None:
    assert dp.sketch_domain(pd.concat([visits(rows), pd.DataFrame({"x": range(30)})])).rules == ()
