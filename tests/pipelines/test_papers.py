"""The jobs in pipelines/papers, on generated tables of the papers' schemas: on threads, in steps, and submitted."""

import json
import subprocess
import sys

import pytest

import dpscale as dp
from tests.pipelines.paper_jobs import JOBS, RELATIONAL, ROOT, write_paper_jobs, write_relational_job
from tests.selection import mostly_slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_paper_jobs(tmp_path_factory.mktemp("clone"))


@pytest.mark.parametrize("paper", mostly_slow(JOBS, ("hdmm",)))
def test_job_runs_on_threads(place, paper):
    release = dp.run(place / f"pipelines/papers/{paper}.toml", place / f"{paper}-threads")
    assert abs(release.total().estimate - 2000) < 200
    assert (release.path / "report.html").exists()


def check_ratings(release):
    """Check keys and bounds of the released pairs, and the measured workloads of the paper's options."""
    found = {name: frame.compute() for name, frame in release.synthetic().items()}
    ratings = found["ratings"]
    assert not ratings.duplicated().any()
    for key, table in (("user_id", "users"), ("movie_id", "movies")):
        assert ratings[key].isin(found[table][key]).all()
        assert ratings[key].value_counts().max() <= 10
    chosen = [k for file in (release.path / "links/ratings").glob("round-*.json") for k in json.loads(file.read_text())]
    assert len(set(chosen)) == len(chosen) == 15 * 3


@pytest.mark.slow
def test_relational_job_runs_on_threads(tmp_path):
    check_ratings(dp.run(write_relational_job(tmp_path), tmp_path / "run"))


@pytest.mark.slow
def test_relational_job_runs_in_steps(tmp_path):
    job = write_relational_job(tmp_path)
    subprocess.run([sys.executable, "pipelines/steps.py", job, "steps"], cwd=tmp_path, check=True)
    check_ratings(dp.Release.open(tmp_path / "steps"))


@pytest.fixture(scope="module")
def cluster():
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("paper", JOBS)
def test_submitted_job_has_the_result_of_threads(place, cluster, paper):
    run = f"{paper}-submitted"
    command = [
        "job",
        "submit",
        f"pipelines/papers/{paper}.toml",
        "--run-dir",
        run,
        "--scheduler",
        cluster.scheduler_address,
    ]
    subprocess.run([sys.executable, "-m", "dpscale", *command], cwd=place, check=True)
    subprocess.run([sys.executable, "-m", "dpscale", "job", "wait", run], cwd=place, check=True)
    assert abs(dp.Release.open(place / run).total().estimate - 2000) < 200


def test_every_job_is_listed():
    assert {path.stem for path in (ROOT / "pipelines/papers").glob("*.toml")} == {*JOBS, RELATIONAL}
    listed = (ROOT / "pipelines/papers/README.md").read_text()
    assert all(f"`{name}.toml`" in listed for name in (*JOBS, RELATIONAL))


@pytest.mark.slow
@pytest.mark.parametrize("paper", JOBS)
def test_job_runs_in_steps(place, paper):
    """Each stage is a process of its own, as the tasks of the Airflow DAG are."""
    command = [sys.executable, "pipelines/steps.py", f"pipelines/papers/{paper}.toml", f"{paper}-steps"]
    subprocess.run(command, cwd=place, check=True)
    assert dp.Release.open(place / f"{paper}-steps").total().estimate > 0
