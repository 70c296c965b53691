"""Pages of a site in a browser, opened from files: search, sort, filters, rows in parts, every width, accessibility."""

import copy

import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from tests.answers.chromium import BROWSER, WAYS, render_page
from tests.answers.test_report_pages import CUT, LOOK, OPENED, axe_script
from tests.periods.growing import MONTHS, frames, make_job as make_growing, write as write_months
from tests.runs.small import DOMAIN, table, write_job, write_table
from tests.selection import mostly_slow

browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
WORKLOAD = [
    {"family": "marginal", "degree": 2},
    {"family": "marginal", "degree": 1},
    {"family": "mean", "of": "fee", "attributes": [["sex"]]},
    {"query": "-- name: young\nSELECT sex, COUNT(*) AS n FROM data WHERE age < 4 GROUP BY sex"},
]
VISITS = {
    "index": "index.html",
    "privacy": "privacy.html",
    "publication": "visits/index.html",
    "counts": "visits/tables/age-sex.html",
    "numbers": "visits/tables/mean~fee~sex.html",
    "statement": "visits/tables/select~young.html",
    "attribute": "visits/attributes/sex.html",
    "periods": "growing/tables/a-b.html",
    "kinds": "growing/index.html",
    "parts": "visits/tables/age-income.html",
}
EMBEDDED = 16


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site whose table of age and income has 16 of its 40 rows on the page."""
    place = tmp_path_factory.mktemp("site")
    write_table(place / "data", table())
    job = write_job(place, workload=WORKLOAD, about={"title": "Visits", "notes": "Visits to hospitals."})
    domain = copy.deepcopy(DOMAIN)
    domain["attributes"]["sex"] |= {"title": "Sex", "labels": {"F": "women", "M": "men"}}
    domain["numbers"] = {"fee": {"low": 0, "high": 100, "step": 1, "from": "income", "nulls": "drop"}}
    (place / "domain.toml").write_text(tomli_w.dumps(domain))
    (place / "months").mkdir()
    write_months(place / "months", frames(months=MONTHS[:3]))
    paths = [dp.run(job, place / "run").path, dp.run(make_growing(place / "months"), place / "months" / "run").path]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpscale.answers.site.pages.EMBEDDED", EMBEDDED)
        result = CliRunner().invoke(main, ["site", *map(str, paths), "--out", str(place / "out"), "--limit", "0.1"])
    assert result.exit_code == 0, result.output
    return place / "out"


@browser
@pytest.mark.parametrize("page", mostly_slow(VISITS, {"counts", "privacy"}))
def test_page_renders_without_faults(site, page, monkeypatch):
    widths = ("360", "768", "1440")
    for width in widths:
        monkeypatch.setitem(WAYS, width, {"width": int(width), "height": 900, "scheme": "light", "media": ""})
    for way, result in render_page(site / VISITS[page], LOOK, (*widths, "dark", "print")).items():
        found = result["found"]
        assert (result["console"], found["faint"], found["anchors"], found["scripts"]) == ([], [], [], 2), way
        assert found["wider"] <= 0, way
        assert found["headings"].count(1) == 1
        assert all(below <= above + 1 for above, below in zip(found["headings"], found["headings"][1:], strict=False))
    for way, result in render_page(site / VISITS[page], CUT.replace("OPENED", OPENED), widths).items():
        cut, titles, _ = result["found"]
        assert (cut, titles) == ([], 0), way


@browser
@pytest.mark.parametrize("page", mostly_slow(VISITS, {"counts", "privacy"}))
def test_page_has_no_accessibility_faults(site, page):
    for way, result in render_page(site / VISITS[page], axe_script(), ("desktop", "phone", "dark")).items():
        assert result["found"] == [], way


SHOWN = """const shown = () => [...document.querySelectorAll("table.searched tbody tr")].filter((row) => !row.hidden)
    .map((row) => [...row.cells].map((cell) => cell.textContent));"""


@browser
def test_table_is_searched_filtered_and_sorted_from_a_file(site):
    script = f"""(() => {{ {SHOWN} const found = [shown()];
        const input = document.querySelector("input[type=search]"), selects = document.querySelectorAll("select");
        input.value = "women"; input.dispatchEvent(new Event("input")); found.push(shown());
        input.value = ""; selects[0].selectedIndex = 3; input.dispatchEvent(new Event("input"));
        found.push(shown());
        selects[0].selectedIndex = 0; selects[0].dispatchEvent(new Event("input"));
        const buttons = document.querySelectorAll("table.sortable th button");
        buttons[2].click(); found.push(shown()); buttons[2].click(); found.push(shown());
        return [found, location.protocol, document.querySelector("output").textContent]; }})()"""
    (every, women, filtered, down, up), protocol, told = render_page(site / VISITS["counts"], script, ("desktop",))[
        "desktop"
    ]["found"]
    assert (protocol, told, len(every)) == ("file:", "16 of 16 rows", 16)
    assert women == [row for row in every if row[1] == "women"]
    assert filtered == [row for row in every if row[0] == "2"]
    assert len(filtered) == 2

    def counts(rows):
        return [int(row[2].replace("○", "").replace(",", "")) for row in rows]

    assert counts(down) == sorted(counts(every), reverse=True)
    assert counts(up) == sorted(counts(every))


@browser
def test_index_finds_tables_and_attributes(site):
    script = f"""(() => {{ {SHOWN} const input = document.querySelector("input[type=search]");
        input.value = "sex income"; input.dispatchEvent(new Event("input")); return shown(); }})()"""
    found = render_page(site / "index.html", script, ("phone",))["phone"]["found"]
    assert [row[0] for row in found] == ["Number of records by Sex, income"]


@browser
@pytest.mark.parametrize("act", ["search", "sort", "more", "filter"])
def test_rows_in_parts_are_loaded_from_files(site, act):
    acts = {
        "search": 'input.value = "7"; input.dispatchEvent(new Event("input"));',
        "sort": 'document.querySelectorAll("table.sortable th button")[2].click();',
        "more": 'document.querySelector("button.more").click();',
        "filter": """const select = document.querySelector("select"); select.selectedIndex = 8;
            select.dispatchEvent(new Event("input"));""",
    }
    script = f"""(async () => {{ {SHOWN} const input = document.querySelector("input[type=search]");
        const before = shown().length; {acts[act]}
        await new Promise((done) => setTimeout(done, 400));
        return [before, shown(), document.querySelector("button.more").hidden]; }})()"""
    result = render_page(site / VISITS["parts"], script, ("desktop",))["desktop"]
    assert result["console"] == []
    before, rows, is_whole = result["found"]
    assert before == EMBEDDED
    assert is_whole == (act != "more")
    if act == "more":
        assert len(rows) == 2 * EMBEDDED
    elif act == "sort":
        counts = [int(row[2].replace("○", "").replace(",", "")) for row in rows]
        assert (len(counts), counts) == (40, sorted(counts, reverse=True))
    else:
        assert {row[0] for row in rows} >= {"7"}
        assert len([row for row in rows if row[0] == "7"]) == 5


@browser
def test_planted_foreign_script_is_refused_by_the_policy(site, tmp_path):
    page = site / VISITS["counts"]
    planted = (
        "<script>window.planted = 1</script><script src='data:text/javascript,window.planted = 1'></script></main>"
    )
    copied = page.with_name("planted.html")
    copied.write_text(page.read_text().replace("</main>", planted))
    result = render_page(copied, "window.planted ?? 0", ("desktop",))["desktop"]
    copied.unlink()
    assert result["found"] == 0
    assert len(result["console"]) == 2


@browser
def test_page_is_whole_without_scripts_and_in_print(site):
    text = (site / VISITS["counts"]).read_text()
    assert text.count("<tr><td data-key") == 16
    script = """[...document.querySelectorAll("nav, .search, .downloads, .more")]
        .filter((one) => one.checkVisibility()).length"""
    found = render_page(site / VISITS["parts"], script, ("desktop", "print"))
    assert found["desktop"]["found"] > 3
    assert found["print"]["found"] == 0
