"""Import cost of the package, pipelines, data generator and links of the documents."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from packaging.requirements import Requirement

import dpscale

ROOT = Path(__file__).parents[1]
HEAVY = (
    "cvxpy",
    "pgmpy",
    "sklearn",
    "matplotlib",
    "dask",
    "dask.dataframe",
    "distributed",
    "pandas",
    "pyarrow",
    "numba",
)


def run_python(*arguments, **options):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def test_importing_the_package_loads_no_heavy_library():
    loaded = run_python("-c", f"import sys, dpscale; print([m for m in {HEAVY} + ('numpy',) if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_help_loads_no_heavy_library_and_few_modules():
    code = (
        "import sys, dpscale; few = len([m for m in sys.modules if m.startswith('dpscale')]);"
        "from dpscale.__main__ import main; main(['--help'], standalone_mode=False);"
        f"heavy = [m for m in {HEAVY} + ('numpy', 'pydantic', 'rich', 'jinja2', 'cryptography') if m in sys.modules];"
        "print(heavy, few, len([m for m in sys.modules if m.startswith('dpscale')]))"
    )
    heavy, few, ours = run_python("-c", code).splitlines()[-1].rsplit(" ", 2)
    assert heavy == "[]"
    assert int(few) == 2
    assert int(ours) <= 40


def test_planning_loads_no_dask_and_no_arrow():
    code = (
        "import sys, dpscale as dp; dp.plan(dp.Workload(dp.Domain({'a': 3})).add('prefix', degree=1)).rmse();"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert run_python("-c", code).strip() == "[]"


def test_every_public_name_exists():
    for name in dpscale.__all__:
        assert getattr(dpscale, name) is not None
    assert dir(dpscale.privacy) == sorted(dpscale.privacy.__all__)
    assert dir(dpscale) == sorted(dpscale.__all__)
    assert dpscale.privacy.gdp_mu(1.0, 1e-6) == pytest.approx(1 / 4.224679, rel=1e-6)
    with pytest.raises(AttributeError):
        _ = dpscale.nothing


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    """The job files of the pipelines next to their data, with fewer rows than they state."""
    from dpscale.cli.demo import write_demo

    place = tmp_path_factory.mktemp("pipelines")
    write_demo(place / "dpscale-demo")
    run_python(
        ROOT / "data/generate.py", place / "dpscale-census", "--rows", 3000, "--attributes", 12, "--sizes", "2,5,20,40"
    )
    shutil.copytree(ROOT / "pipelines", place / "pipelines")
    return place


JOBS = ["adaptive", "main", "census"]


@pytest.mark.slow  # tests/cli and tests/pipelines run the script on other jobs; the job files run below
@pytest.mark.parametrize("name", JOBS)
def test_pipelines_run_step_by_step(pipelines, name):
    run = pipelines / "runs" / name
    run_python(pipelines / "pipelines/steps.py", pipelines / f"pipelines/{name}.toml", run)
    assert (run / "report.html").exists()


@pytest.mark.parametrize("name", ["adaptive", "census"])
def test_job_files_of_pipelines_run(pipelines, name):
    from dpscale import run

    assert (run(pipelines / f"pipelines/{name}.toml", pipelines / f"together/{name}").path / "report.html").exists()


def test_main_pipeline_is_the_demo_job():
    ours = tomllib.loads((ROOT / "pipelines" / "main.toml").read_text())
    demo = tomllib.loads((ROOT / "dpscale" / "cli" / "demo" / "job.toml").read_text())
    assert ours["workload"] == demo["workload"]
    assert ours["mechanism"] == demo["mechanism"]


def test_generator_is_seeded_and_independent_of_files(tmp_path):
    for name, files in (("a", 1), ("b", 3)):
        run_python(
            ROOT / "data" / "generate.py", tmp_path / name, "--rows", 600_000, "--attributes", 3, "--files", files
        )
    one, other = (pq.read_table(tmp_path / name / "table") for name in ("a", "b"))
    assert one.equals(other)
    assert one.num_rows == 600_000
    from dpscale import Domain

    assert Domain.read(tmp_path / "a" / "domain.toml").shape(("x00", "x01", "x02")) == (2, 4, 10)


def test_links_of_documents_exist():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/*.md"), *ROOT.glob("docs/*/*.md")]:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            assert not target.startswith("http"), f"{page}: {target}"
            assert (page.parent / target.split("#")[0]).exists(), f"{page}: {target}"


def test_citation_and_workflows_agree_with_the_project():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == dpscale.__version__
    assert citation["license"] == "Apache-2.0"
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert [path.stem for path in workflows] == ["ci", "docs", "oldest-newest", "wheels"]
    commands = [step["run"].split()[0] for path in workflows
                for job in yaml.safe_load(path.read_text())["jobs"].values()
                for step in job["steps"] if "run" in step]  # fmt: skip
    scripts = [command for command in commands if command.startswith(".ci/")]
    assert scripts
    assert all((ROOT / script).exists() for script in scripts)
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text())


def test_locked_versions_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.M))
    for one in map(Requirement, project["dependencies"]):
        assert one.specifier.contains(locked[one.name]), one


def test_conda_recipe_agrees_with_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / ".ci" / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == dpscale.__version__
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["summary"] == project["description"]
    required = [line.replace(" ", "", 1) for line in recipe["requirements"]["run"]]
    assert required == ["python" + project["requires-python"], *project["dependencies"]]
    [script] = project["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(script)]
    assert (ROOT / ".ci" / "conda" / recipe["source"]["path"]).resolve() == ROOT
