"""Summaries of plan, release, ledger and domain in a Jupyter notebook: numbers, intervals, budget, escapes."""

import re
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.api.public import SpentWarning
from tests.joins.test_answers import release_of
from tests.links.small import make_frames
from tests.numbers.small import write_job as write_numbers
from tests.periods.growing import frames, make_job, open_release, release as release_months, write

SCRIPT = "<script>alert(1)</script>"
CELLS = (
    f"""import warnings
import numpy as np, pandas as pd
import dpscale as dp
warnings.simplefilter("ignore")
towns = ["Ulm", "{SCRIPT}"]
frame = pd.DataFrame({{"town": np.resize(towns, 1000), "age": np.arange(1000) % 90}})
domain = dp.Domain(town=towns, age=dp.bins(0, 90, 30))
domain""",
    'plan = dp.plan([["town", "age"], ["age"]], domain, epsilon=1, delta=1e-9)\nplan',
    "release = dp.run(plan, data=frame)\nrelease",
    'ledger = dp.Ledger.open(plan.ledger)\n_ = ledger.set_cap("default", epsilon=3, delta=1e-9)\nledger',
    "dp.Release.open(release.path)",
    'release.plot("age")',
)


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path / "user"))
    warnings.simplefilter("ignore", SpentWarning)
    return tmp_path / "user"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """HTML of the last expression of each cell, as a kernel of Jupyter shows it."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = tmp_path_factory.mktemp("notebook")
    kernels = folder / "share" / "kernels" / "own"  # of this Python, whatever kernels the user has
    kernels.mkdir(parents=True)
    command = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernels / "kernel.json").write_text(f'{{"argv": {command}, "display_name": "own", "language": "python"}}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "share"))
        patch.setenv("DPSCALE_DATA", str(folder / "user"))
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in CELLS])
        settings = {"metadata": {"path": str(folder)}}
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="own", resources=settings).execute()
    *tables, plot = [cell["outputs"][-1]["data"] for cell in notebook.cells]
    assert "image/png" in plot
    return [one["text/html"] for one in tables]


def text_of(html):
    return re.sub("<[^>]+>", " ", html)


def test_notebook_shows_numbers_with_intervals_cost_and_remaining_budget(outputs):
    domain, plan, release, ledger, capped = outputs
    assert re.search(r"age +bins +0 to 90 +3 ", text_of(domain))
    assert re.search(r"marginal-2 +1 +6 +± [\d.]+ records", text_of(plan))
    assert re.search(r"\[0, 30\) +\d+ +\d+ to \d+", text_of(release))
    assert re.search(r"records  *[\d,]+ \(95 % interval [\d,]+ to [\d,]+\)", text_of(release))
    assert re.search(r"cost +ε 1 at δ 10⁻⁹", text_of(release))
    assert re.search(r"remaining budget +no cap", text_of(release))
    assert re.search(r"default +1 +ε 1 at δ 10⁻⁹ +ε 3 at δ 10⁻⁹ +ε 2\.\d+ at δ 10⁻⁹", text_of(ledger))
    assert re.search(r"remaining budget +ε 2\.\d+ at δ 10⁻⁹", text_of(capped))


def test_labels_with_markup_are_escaped(outputs):
    assert all("<script>" not in html for html in outputs)
    assert "&lt;script&gt;" in outputs[0]
    assert "&lt;script&gt;" in outputs[2]


def test_escapes_reach_names_datasets_and_paths(tmp_path):
    domain = dp.Domain({SCRIPT: 3, "b": 2})
    plan = dp.plan([[SCRIPT, "b"]], domain, epsilon=8, dataset=SCRIPT, ledger=tmp_path / "<b>ledger.sqlite")
    release = dp.run(plan, data=pd.DataFrame({SCRIPT: np.resize(range(3), 90), "b": np.resize([0, 1], 90)}))
    with dp.Ledger.open(plan.ledger) as ledger:
        for thing in (domain, plan, release, ledger, dp.Workload(domain).add("marginal", degree=1)):
            html = thing._repr_html_()
            assert "<script>" not in html
            assert "<b>" not in html
        assert "ε 8" in ledger._repr_html_()
        assert "ledger.sqlite" in repr(ledger)


def test_growing_table_shows_its_periods_and_those_show_numbers(tmp_path):
    write(tmp_path, frames())
    release = open_release(release_months(make_job(tmp_path), tmp_path / "run", ["2026-01", "2026-02"]))
    assert "2 of 6 released: 2026-01 to 2026-02" in release._repr_html_()
    assert re.search(r"\d+ +\d+ to \d+", text_of(release.at("2026-02")._repr_html_()))


def test_several_tables_and_joins_show_a_table_each(tmp_path):
    html = release_of(tmp_path, make_frames())._repr_html_()
    assert "records of persons" in html
    assert "<strong>persons: marginal" in html
    assert "persons.sex" in html


def test_sums_and_means_have_their_units(tmp_path):
    workload = [{"family": "mean", "of": "pay", "attributes": [["a"], []]}, {"family": "prefix", "degree": 1}]
    html = dp.run(write_numbers(tmp_path, workload), run_dir=tmp_path / "run")._repr_html_()
    assert re.search(r"[\d.]+ +[\d.]+ to [\d.]+", text_of(html))
    assert "a_at_most" in html
    assert "its noise is public" in html


def test_plans_of_adaptive_mechanisms_say_that_errors_follow():
    plan = dp.plan([["a", "b"]], dp.Domain(a=3, b=2), "aim-grem", epsilon=1, delta=1e-9)
    assert "errors are known after it" in plan._repr_html_()
