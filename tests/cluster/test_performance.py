"""The performance report of a run, and clusters whose workers come and go."""

import dask
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from tests.runs.small import table, write_job, write_table


def test_report_of_a_run_on_a_cluster_is_one_page_without_data(tmp_path, client):
    pytest.importorskip("bokeh")
    write_table(tmp_path / "data", table())
    page = tmp_path / "performance.html"
    with dask.config.set({"dpscale.performance-report": str(page)}):
        dp.run(write_job(tmp_path), tmp_path / "run", client=client)
    text = page.read_text()
    assert "dpscale-count" in text
    assert "Bokeh" in text
    assert str(tmp_path / "data") not in text


def test_report_without_cluster_or_folder_is_refused(tmp_path):
    write_table(tmp_path / "data", table())
    job = str(write_job(tmp_path))
    for file, words in (("report.html", "for a run without a cluster"), ("no/report.html", "does not exist")):
        with dask.config.set({"dpscale.performance-report": None}):
            result = CliRunner().invoke(main, ["run", job, "--run-dir", str(tmp_path / "run"), "--performance-report",
                                               str(tmp_path / file)])  # fmt: skip
        assert result.exit_code == 2, result.output
        assert words in result.output
    assert not (tmp_path / "run" / "answers").exists()


def test_workers_that_come_and_go_give_the_same_bytes(tmp_path):
    from distributed import Client, LocalCluster

    write_table(tmp_path / "data", table())
    job = write_job(tmp_path, engine={"seed": 7})
    threads = dp.run(job, tmp_path / "threads")
    with LocalCluster(n_workers=0, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        cluster.adapt(minimum=0, maximum=2, interval="200ms", wait_count=2)
        with Client(cluster) as client, dask.config.set({"dpscale.worker-wait": "120s"}):
            adaptive = dp.run(job, tmp_path / "adaptive", client=client, fresh=True)
    for file in (threads.path / "answers").glob("*.parquet"):
        assert file.read_bytes() == (adaptive.path / "answers" / file.name).read_bytes()
