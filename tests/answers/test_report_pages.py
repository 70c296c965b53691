"""Reports in a browser: light, dark, phone and print modes, without external resources or private paths."""

from __future__ import annotations

import io
import re
import shutil
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from markupsafe import escape

import dpscale as dp
from dpscale.answers.findings import findings
from dpscale.answers.report.page import HIDDEN, public_name, redacted, security_policy, shared_file
from dpscale.base.display import rounded
from dpscale.mechanisms import MECHANISMS
from dpscale.runs.opening import open_part
from tests.answers.chromium import BROWSER, WAYS, render_page
from tests.links.small import write_job as write_shop
from tests.periods.growing import frames, make_job as make_growing, write as write_months
from tests.runs.small import table, write_job, write_table
from tests.selection import mostly_slow

LOOK = (Path(__file__).parent / "look.js").read_text()
PAIRS = [{"family": "marginal", "degree": 2}, {"family": "marginal", "degree": 1}]
JOBS = {
    "least-squares": {
        "data": {"path": "data", "domain": "domain.toml", "privacy_unit": "person", "max_rows_per_unit": 3}
    },
    "laplace": {"mechanism": {"name": "hdmm"}, "privacy": {"epsilon": 1.0}},
    "adaptive": {"mechanism": {"name": "aim-grem"}, "workload": PAIRS, "synthesize": {"rows": 500}},
}
browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def report_of(tmp_path_factory, plots_of_module):
    """Function that returns the path of a report of a kind, written in the first call."""

    @cache
    def written(name):
        place = tmp_path_factory.mktemp(name)
        if name == "tables":
            job = write_shop(place)
        elif name == "growing":
            write_months(place, frames())
            job = make_growing(place)
        else:
            write_table(place / "data", table())
            job = write_job(place, **JOBS[name])
        return dp.run(job, place / "run").path / "report.html"

    return written


@browser
@pytest.mark.parametrize("name", mostly_slow([*JOBS, "tables", "growing"], {"least-squares", "tables"}))
def test_report_renders_in_every_mode(report_of, name):
    for way, result in render_page(report_of(name), LOOK).items():
        assert result["console"] == [], way
        found = result["found"]
        assert found["faint"] == [], way
        assert found["anchors"] == [], way
        assert found["wider"] <= 0, way
        assert found["scripts"] == 0, way
        steps = zip(found["headings"], found["headings"][1:], strict=False)
        assert found["headings"].count(1) == 1
        assert all(below <= above + 1 for above, below in steps), way


@browser
@pytest.mark.slow  # what differs by mechanism is looked at above
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_report_of_every_mechanism_renders(tmp_path, name):
    write_table(tmp_path / "data", table())
    job = write_job(tmp_path, mechanism={"name": name}, workload=PAIRS)
    result = render_page(dp.run(job, tmp_path / "run").path / "report.html", LOOK)
    assert [
        way for way, one in result.items() if one["console"] or one["found"]["faint"] or one["found"]["wider"] > 0
    ] == []


@browser
def test_planted_page_faults_are_detected(report_of, tmp_path):
    page = report_of("laplace").read_text()
    wide = "<div style='width:2000px'>.</div></main><script>nothing.here()</script>"
    for old, new in (("--soft: #565b62", "--soft: #bbbbbb"), ('id="sure"', 'id="other"'), ("</main>", wide)):
        assert old in page
        page = page.replace(old, new)
    (tmp_path / "page.html").write_text(page)
    result = render_page(tmp_path / "page.html", LOOK, ("desktop",))["desktop"]
    assert result["console"]
    assert result["found"]["faint"]
    assert result["found"]["anchors"] == ["#sure"]
    assert result["found"]["wider"] > 0


@browser
def test_header_click_sorts_table(report_of):
    script = """(() => { const button = document.querySelectorAll("table.sortable th button")[3]; button.click();
        const rows = () => [...document.querySelectorAll("table.sortable tbody tr")];
        const told = () => rows().map((row) => Number(row.cells[3].dataset.key));
        const down = told(); button.click(); return [down, told()]; })()"""
    down, up = render_page(report_of("least-squares"), script, ("desktop",))["desktop"]["found"]
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)


OPENED = "document.querySelectorAll('details').forEach((one) => { one.open = true; });"
VIOLATIONS = """(async () => { OPENED const found = await axe.run(document, { resultTypes: ["violations"] });
    return found.violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 80))]); })()"""


def axe_script():
    """Script of axe-core that returns the accessibility faults of a page with every part open."""
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    return (Path(package.__path__[0]) / "axe.min.js").read_text() + ";\n" + VIOLATIONS.replace("OPENED", OPENED)


@browser
@pytest.mark.parametrize("name", mostly_slow([*JOBS, "tables", "growing"], {"least-squares", "tables"}))
def test_report_has_no_accessibility_faults(report_of, name):
    for way, result in render_page(report_of(name), axe_script()).items():
        assert result["found"] == [], way


@browser
@pytest.mark.parametrize("planted", [
    "<script>window.planted = 1</script>",
    "<img src='data:image/gif;base64,x' onerror='window.planted = 1'>",
    "<iframe srcdoc='<script>parent.planted = 1</script>'></iframe>",
    "<a href='javascript:window.planted = 1' id='link'>.</a>",
])  # fmt: skip
@pytest.mark.parametrize("policy", [True, False])
def test_policy_of_the_page_blocks_scripts_in_texts(report_of, tmp_path, planted, policy):
    """A text that were not escaped could run nothing; without the policy it runs."""
    page = report_of("laplace").read_text().replace("</main>", f"{planted}</main>")
    if not policy:
        page = page.replace("Content-Security-Policy", "other")
    (tmp_path / "page.html").write_text(page)
    script = """(async () => { document.getElementById("link")?.click();
        await new Promise((done) => setTimeout(done, 300)); return window.planted ?? 0; })()"""
    result = render_page(tmp_path / "page.html", script, ("desktop",))["desktop"]
    assert result["found"] == (0 if policy else 1)


@browser
def test_planted_accessibility_faults_are_detected(report_of, tmp_path):
    script, changed = shared_file("page.js"), shared_file("page.js").replace('"Search ", input', "input")
    page = report_of("laplace").read_text().replace('<html lang="en">', "<html>").replace(script, changed)
    page = page.replace(escape(security_policy(script)), escape(security_policy(changed)))
    (tmp_path / "page.html").write_text(page)
    found = render_page(tmp_path / "page.html", axe_script(), ("desktop",))["desktop"]["found"]
    assert {"html-has-lang", "label"} <= {name for name, _ in found}


@browser
def test_search_filters_the_index_of_tables(report_of):
    script = """(() => { const input = document.querySelector("input[type=search]"), found = [];
        for (const text of ["", "income code", "RANGE", "nothing"]) {
            input.value = text; input.dispatchEvent(new Event("input"));
            found.push([...document.querySelectorAll("table.searched tbody tr")].filter((row) => !row.hidden)
                .map((row) => row.cells[0].textContent)); }
        return [found, document.querySelector("output").textContent]; })()"""
    (every, pair, family, nothing), told = render_page(report_of("least-squares"), script, ("phone",))["phone"]["found"]
    assert (len(every), pair, family, nothing) == (7, ["income, code"], ["age"], [])
    assert told == "0 of 7 rows"


@browser
def test_buttons_save_every_table_as_csv(report_of):
    script = """(async () => { const saved = [], names = [];
        URL.createObjectURL = (blob) => { saved.push(blob); return "#"; };
        HTMLAnchorElement.prototype.click = function () { names.push(this.download); };
        const buttons = [...document.querySelectorAll("button.csv")];
        for (const button of buttons) { button.click(); while (names.length <= buttons.indexOf(button))
            await new Promise((done) => setTimeout(done, 5)); }
        return [names, await Promise.all(saved.map((one) => one.text())), buttons.some((one) => one.hidden)]; })()"""
    names, texts, hidden = render_page(report_of("least-squares"), script, ("desktop",))["desktop"]["found"]
    assert not hidden
    saved = {name: pd.read_csv(io.StringIO(text)) for name, text in zip(names, texts, strict=True)}
    release = dp.Release.open(report_of("least-squares").parent)
    for name, row in (("marginal-sex-code", ["sex", "code"]), ("marginal-income-code", ["income", "code"])):
        ours, exact = saved[f"{name}.csv"], release.table(row)
        assert list(ours.columns) == [*row, "estimate", "std_error", "low", "high"]
        for figure in ("estimate", "std_error", "low", "high"):
            error = float(exact["std_error"].min())
            assert ours[figure].to_numpy() == pytest.approx(exact[figure].to_numpy(), abs=error / 100)
    ranges = saved["range-age.csv"]
    assert len(ranges) == len(release.table(["age"], family="range"))
    assert list(saved["age.csv"].columns) == ["age", "estimate", "low", "high"]


@browser
def test_technical_parts_are_folded_and_open_in_print(report_of):
    script = """(() => { const seen = () => [...document.querySelectorAll("details")].map((one) => one.open);
        const before = seen(); dispatchEvent(new Event("beforeprint")); const printed = seen();
        dispatchEvent(new Event("afterprint")); return [before, printed, seen()]; })()"""
    before, printed, after = render_page(report_of("adaptive"), script, ("desktop",))["desktop"]["found"]
    assert len(before) >= 6
    assert not any(before)
    assert all(printed)
    assert after == before


def test_first_screen_says_what_and_how_sure_and_the_privacy_part_whom(report_of):
    page = report_of("least-squares").read_text()
    first, privacy = page.split("<h2")[0], page.split('<h2 id="cost">')[1].split("<h2")[0]
    risk = open_part(report_of("least-squares").parent).attack_risk.sentence
    assert risk in privacy
    assert risk not in first
    assert privacy.index("every person with all rows") < privacy.index("ε =") < privacy.index(risk)
    for text in ("answers in", "at most 3 rows of one person are counted", "95 % of the cases"):
        assert text in first
    assert "ε" not in first
    ids = [name for name in ("says", "cost", "limits", "sets", "sure", "job") if f'id="{name}"' in page]
    assert ids == sorted(ids, key=lambda name: page.index(f'id="{name}"')), "results, then protection, then method"


def test_first_screen_shows_total_and_labels(report_of):
    page = report_of("least-squares").read_text()
    release = dp.Release.open(report_of("least-squares").parent)
    total = release.total()
    told = float(re.search(r"about ([\d,]+)", page)[1].replace(",", ""))
    assert told == pytest.approx(total.estimate, abs=0.5 + (total.high - total.low) / 20)
    first = page.split('id="sure"')[0]
    for row in release.table(("sex",)).itertuples():
        shown = [rounded(one, row.std_error, 0) for one in (row.estimate, row.low, row.high)]
        assert f"{shown[0]} <small>({shown[1]} to {shown[2]})</small>" in first
    assert "(missing)" in first
    assert "bit plane" not in page
    assert "e-0" not in page.split("<h2")[0]


def test_findings_are_on_the_first_screen(report_of):
    page, release = report_of("least-squares").read_text(), dp.Release.open(report_of("least-squares").parent)
    told = [one.sentence(release.domain) for one in findings(release.answered)]
    first = page.split("<h2")[0].replace("\u00a0", " ")
    assert told
    assert all(str(escape(one)) in first for one in told)


CUT = """(async () => { await new Promise((done) => setTimeout(done, 50)); OPENED
    const cut = [...document.querySelectorAll("*")].filter((one) => one.scrollWidth > one.clientWidth + 1
        && ["auto", "scroll"].includes(getComputedStyle(one).overflowX) && one.clientWidth);
    dispatchEvent(new Event("resize"));
    return [cut.filter((one) => !one.matches(".wide.cut, pre, .index")).map((one) => one.outerHTML.slice(0, 90)),
            document.querySelectorAll("[title]").length, cut.length]; })()"""


@browser
@pytest.mark.parametrize("name", mostly_slow([*JOBS, "tables", "growing"], {"least-squares"}))
def test_no_table_is_cut_without_a_hint_and_nothing_needs_a_pointer(report_of, name, monkeypatch):
    for width in (360, 768, 1440):
        monkeypatch.setitem(WAYS, f"{width}", {"width": width, "height": 900, "scheme": "light", "media": ""})
        result = render_page(report_of(name), LOOK, (f"{width}",))[f"{width}"]
        assert result["found"]["wider"] <= 0
        cut, titles, _ = render_page(report_of(name), CUT.replace("OPENED", OPENED), (f"{width}",))[f"{width}"]["found"]
        assert (cut, titles) == ([], 0), width


@browser
def test_print_has_no_controls(report_of):
    script = (
        """[...document.querySelectorAll("nav, button.csv, .search")].filter((one) => one.checkVisibility()).length"""
    )
    found = render_page(report_of("least-squares"), script, ("desktop", "print"))
    assert found["desktop"]["found"] > 3
    assert found["print"]["found"] == 0


@browser
def test_planted_table_without_a_hint_is_detected(report_of, tmp_path):
    page = report_of("laplace").read_text()
    planted = "<div style='overflow-x: auto'><table style='width: 3000px'><tr><td>.</td></tr></table></div></main>"
    (tmp_path / "page.html").write_text(page.replace("</main>", planted))
    cut, *_ = render_page(tmp_path / "page.html", CUT.replace("OPENED", OPENED), ("phone",))["phone"]["found"]
    assert len(cut) == 1


def test_report_hides_paths_and_data_hash(report_of):
    for name in (*JOBS, "tables", "growing"):
        path = report_of(name)
        page = path.read_text()
        assert str(path.parent.parent) not in page, name
        assert HIDDEN in page
    manifest = dp.Release.open(report_of("laplace").parent).manifest
    assert manifest["snapshot"] not in report_of("laplace").read_text(), "a hash of the records would confirm a guess"


def test_report_code_snippets_run(report_of, monkeypatch):
    from dpscale.runs.answers import read_index
    from dpscale.runs.stages.report import snippets

    run = report_of("laplace").parent
    result = dict(snippets(open_part(run), read_index(run / "answers")))
    *before, table, total = result["Python"].replace("RUN_DIRECTORY", str(run)).splitlines()
    names = {}
    exec("\n".join(before), names)
    found = eval(table, names)
    assert len(eval(total, names)) == 3
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(run)
    assert duckdb.sql(result["DuckDB"]).df()["estimate"].tolist() == pytest.approx(found["estimate"].tolist())


def test_redaction_hides_paths_and_preserves_queries():
    result = redacted({"data": {"path": "a/b.csv", "where": "year = 2025"}, "engine": {"scheduler": "tcp://10.0.0.1:1"},
                     "workload": [{"family": "marginal", "file": "q.npy"}], "x": ["/home/me", "age"]})  # fmt: skip
    assert result == {"data": {"path": HIDDEN, "where": "year = 2025"}, "engine": {"scheduler": HIDDEN},
                    "workload": [{"family": "marginal", "file": HIDDEN}], "x": [HIDDEN, "age"]}  # fmt: skip
    assert redacted({"engine": {"scheduler": "threads"}}) == {"engine": {"scheduler": "threads"}}
    texts = {"workload": [{"query": "/* all */ SELECT 1"}, {"query": "~://"}], "about": {"contact": "https://a.b"}}
    assert redacted(texts) == texts
    assert public_name("/srv/data/hiv") == "the dataset"
    assert public_name("survey-2025") == "survey-2025"


def test_report_shows_budget_left_under_cap(tmp_path):
    from dpscale.ledger import Ledger

    write_table(tmp_path / "data", table())
    job = write_job(tmp_path)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 3.0, 1e-9)
    page = (dp.run(job, tmp_path / "run").path / "report.html").read_text()
    assert "remains for one more release" in page
    shutil.move(tmp_path / "ledger.sqlite", tmp_path / "elsewhere")
    (tmp_path / "run" / "report.html").unlink()
    assert "remains for one more release" not in (dp.run(job, tmp_path / "run").path / "report.html").read_text()
