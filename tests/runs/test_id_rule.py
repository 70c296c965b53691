"""A run that began under another rule for ids is not resumed, because it would bound other rows."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.runs.opening import begin_run, open_run, read_job
from tests.messages import refused
from tests.running import run_stages
from tests.runs.small import ROWS, table, write_job, write_table

UNIT = {"path": "data", "domain": "domain.toml", "privacy_unit": "person", "max_rows_per_unit": 2}


BYTES = pa.array([b"a", b"b"] * (ROWS // 4))
COLUMNS = {
    "text": [pa.array(["a", "b"] * (ROWS // 4))] * 2,
    "bytes": [BYTES] * 2,
    "bytes in a dictionary": [BYTES.dictionary_encode()] * 2,
    "nulls, then bytes": [pa.nulls(ROWS // 2), BYTES],
    "bytes as texts": [BYTES] * 2,
}


@pytest.mark.parametrize("case", COLUMNS)
def test_only_ids_of_bytes_have_another_rule_than_before(tmp_path, case):
    (tmp_path / "data").mkdir()
    rows = pa.Table.from_pandas(table(), preserve_index=False)
    for number, ids in enumerate(COLUMNS[case]):
        half = rows.slice(number * ROWS // 2, ROWS // 2).append_column("id", ids)
        pq.write_table(half, tmp_path / f"data/{number}.parquet")
    data = UNIT | {"privacy_unit": "id"} | ({"unit_type": "text"} if case == "bytes as texts" else {})
    run_stages(begin_run(read_job(write_job(tmp_path, data=data)), tmp_path / "run"), only="plan")
    manifest = tmp_path / "run/manifest.json"
    manifest.write_text(manifest.read_text().replace('"ids": "3"', '"ids": "2"'))
    if case in ("text", "bytes as texts"):
        run_stages(open_run(tmp_path / "run"), only="measure")
        return
    with refused(dp.JobError):
        run_stages(open_run(tmp_path / "run"), only="measure")


@pytest.mark.parametrize("unit", [True, False])
def test_run_under_an_earlier_rule_is_not_resumed(tmp_path, unit):
    write_table(tmp_path / "data", table())
    data = UNIT if unit else {name: UNIT[name] for name in ("path", "domain")}
    run_stages(begin_run(read_job(write_job(tmp_path, data=data)), tmp_path / "run"), only="plan")
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    del manifest["ids"]  # as an earlier version wrote it
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    if unit:
        with refused(dp.JobError):
            run_stages(open_run(tmp_path / "run"), only="measure")
        assert not (tmp_path / "ledger.sqlite").exists()
    else:
        run_stages(open_run(tmp_path / "run"), only="measure")
