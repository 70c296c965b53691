"""The snapshot id, which fixes the noise, depends on the table to which a row filter applies."""

import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.engine.schedulers import LocalEngine
from dpscale.runs import source
from dpscale.runs.opening import open_part


def filtered_content_hash(place, on):
    """Return the content hash of a run with a row filter on the data, on the unit table or on neither."""
    hop = {"path": "hop.parquet", "key": "id", "unit": "person", **({"where": "a = 1"} if on == "hop" else {})}
    data = {"path": "data.parquet", "domain": "d.toml", "privacy_unit": "id", "max_rows_per_unit": 2,
            "unit_nulls": "drop", "unit_through": [hop], **({"where": "a = 1"} if on == "data" else {})}  # fmt: skip
    job = {"data": data, "privacy": {"epsilon": 1.0, "delta": 1e-6, "dataset": on, "ledger": "l.sqlite"},
           "workload": [{"family": "marginal", "degree": 1}]}  # fmt: skip
    (place / f"{on}.toml").write_text(tomli_w.dumps(job))
    run = open_part(dp.run(place / f"{on}.toml", place / on).path)
    return source.content_hash(run, run.job.data.origin.table(run.job.data.path, run.domain), LocalEngine())


@pytest.fixture
def place(tmp_path):
    pd.DataFrame({"id": range(40), "a": [0, 1] * 20}).to_parquet(tmp_path / "data.parquet")
    pd.DataFrame({"id": range(40), "person": range(40), "a": [0, 1] * 20}).to_parquet(tmp_path / "hop.parquet")
    (tmp_path / "d.toml").write_text("attributes.a = {kind = 'integer', low = 0, high = 1}\n")
    return tmp_path


def test_content_hash_depends_on_filtered_table(place):
    assert len({filtered_content_hash(place, on) for on in ("none", "data", "hop")}) == 3
