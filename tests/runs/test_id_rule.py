"""A run that began under another rule for ids is not resumed, because it would bound other rows."""

import json

import pytest

import dpscale as dp
from dpscale.runs.opening import begin_run, open_run, read_job
from tests.running import run_stages
from tests.runs.small import ROWS, table, write_job, write_table

UNIT = {"path": "data", "domain": "domain.toml", "privacy_unit": "person", "max_rows_per_unit": 2}


def test_only_ids_of_bytes_have_another_rule_than_before(tmp_path):
    for kind, ids in (("text", ["a", "b"]), ("bytes", [b"a", b"b"])):
        place = tmp_path / kind
        write_table(place / "data", table().assign(id=[ids[row % 2] for row in range(ROWS)]))
        data = UNIT | {"privacy_unit": "id", "max_rows_per_unit": 2}
        run_stages(begin_run(read_job(write_job(place, data=data)), place / "run"), only="plan")
        manifest = place / "run/manifest.json"
        manifest.write_text(manifest.read_text().replace('"ids": "3"', '"ids": "2"'))
        if kind == "text":
            run_stages(open_run(place / "run"), only="measure")
        else:
            with pytest.raises(dp.JobError, match="began under an earlier rule for ids"):
                run_stages(open_run(place / "run"), only="measure")


@pytest.mark.parametrize("unit", [True, False])
def test_run_under_an_earlier_rule_is_not_resumed(tmp_path, unit):
    write_table(tmp_path / "data", table())
    data = UNIT if unit else {name: UNIT[name] for name in ("path", "domain")}
    run_stages(begin_run(read_job(write_job(tmp_path, data=data)), tmp_path / "run"), only="plan")
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    del manifest["ids"]  # as an earlier version wrote it
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    if unit:
        with pytest.raises(dp.JobError, match="began under an earlier rule for ids"):
            run_stages(open_run(tmp_path / "run"), only="measure")
        assert not (tmp_path / "ledger.sqlite").exists()
    else:
        run_stages(open_run(tmp_path / "run"), only="measure")
