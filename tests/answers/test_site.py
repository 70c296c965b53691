"""Static sites of releases: links, addresses, editions, numbers as published, costs as on the ledger, no secret."""

import copy
import itertools
import json
import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.answers.publish import chosen, finished_tables, publish
from dpscale.answers.site.pages import EMBEDDED
from dpscale.answers.site.sheets import address_of_name, address_of_names, address_of_title
from dpscale.ledger import Ledger
from tests.links.small import write_job as write_shop
from tests.periods.growing import MONTHS, frames, make_job as make_growing, write as write_months
from tests.runs.small import DOMAIN, table, write_job, write_table

TITLE = "Emergency visits, 2024"
FOLDER = "emergency-visits-2024"
STATEMENT = "-- name: young\nSELECT sex, COUNT(*) AS n, AVG(fee) AS fee FROM data WHERE age < 4 GROUP BY sex"
PLANTED = '<script>window.planted = 1</script>"'
WORKLOAD = [
    {"family": "marginal", "degree": 2},
    {"family": "marginal", "degree": 1},
    {"family": "mean", "of": "fee", "attributes": [["sex"]]},
    {"query": STATEMENT},
]


def domain():
    """Domain file with words for readers and a number."""
    found = copy.deepcopy(DOMAIN)
    found["attributes"]["sex"] |= {"title": "Sex", "labels": {"F": "women", "M": f"men {PLANTED}"}}
    found["attributes"]["age"] |= {"title": "Age group", "description": f"In years {PLANTED}"}
    return found | {"numbers": {"fee": {"low": 0, "high": 100, "step": 1, "from": "income", "nulls": "drop"}}}


def release(place, name, **changes):
    """Path of a finished run of the small table."""
    about = {"title": TITLE, "publisher": "Ministry", "notes": f"Visits {PLANTED}"}
    job = write_job(place, f"{name}.toml", **{"workload": WORKLOAD, "about": about, **changes})
    (place / "domain.toml").write_text(tomli_w.dumps(domain()))
    return dp.run(job, place / name).path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two editions of one table, a growing table, and several tables."""
    place = tmp_path_factory.mktemp("secret-place")
    write_table(place / "data", table())
    with Ledger.open(place / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 5.0, 1e-9)
    first = release(place, "first")
    second = release(place, "second", workload=[{"family": "marginal", "attributes": [["age", "sex"]]}])
    for name in ("months", "shop"):
        (place / name).mkdir()
    write_months(place / "months", frames(months=MONTHS[:3]))
    growing = dp.run(make_growing(place / "months"), place / "months" / "run").path
    shop = dp.run(write_shop(place / "shop"), place / "shop" / "run").path
    return {"first": first, "second": second, "growing": growing, "shop": shop}


def build(out, *paths, more=()):
    result = CliRunner().invoke(main, ["site", *map(str, paths), "--out", str(out), "--json", *map(str, more)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def site(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "site"
    build(out, *runs.values())
    return out


class Page(HTMLParser):
    """Links, anchors, scripts, texts of cells and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.inline, self.rows, self.events, self._cell = [], set(), 0, [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.links += [known[name] for name in ("href", "src") if name in known]
        self.ids |= {known["id"]} if "id" in known else set()
        self.inline += tag == "script" and "src" not in known
        self.events += [name for name in known if name.startswith("on")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append([known.get("data-key"), ""])
            self._cell = self.rows[-1][-1]

    def handle_endtag(self, tag):
        self._cell = None if tag in ("td", "th") else self._cell

    def handle_data(self, data):
        if self._cell is not None:
            self._cell[1] += data


def faults_of(site):
    """Links that lead out of the site or to nothing, and code in pages."""
    pages = {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        found += [(path.name, "inline script or handler")] * (page.inline + len(page.events))
        for link in page.links:
            parts = urlsplit(link)
            target = (path.parent / parts.path).resolve() if parts.path else path
            outside = parts.scheme or parts.netloc or not target.is_relative_to(site.resolve())
            lost = parts.fragment and parts.fragment not in getattr(pages.get(target), "ids", ())
            found += [(path.name, link)] if outside or not target.is_file() or lost else []
    return found


def rows_of(path):
    """Rows of the body of the table of a page, as pairs of key and text for each cell."""
    text = path.read_text()
    body = text[text.index('<table class="sortable searched rows"') :]
    return Page(body[body.index("<tbody>") : body.index("</tbody>")]).rows


def files_of(site):
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def test_all_links_and_anchors_lead_to_the_site(site):
    assert len(list(site.rglob("*.html"))) > 60
    assert faults_of(site) == []
    for path in site.rglob("*.html"):
        assert "script-src &#39;self&#39;; " in path.read_text()
    page = site / FOLDER / "index.html"
    kept = page.read_text()
    planted = ('<a href="https://a.b/c">', '<a href="none.html">', '<a href="#none">', '<script src="//a.b/c.js">',
               "<script>1</script>", '<a href="../../secret">', "<p onclick='1'>")  # fmt: skip
    for fault in planted:
        page.write_text(kept.replace("</main>", f"{fault}</main>"))
        assert len(faults_of(site)) == 1, fault
    page.write_text(kept)


def test_every_page_can_be_reached_from_the_index(site):
    seen, waiting = set(), [site / "index.html"]
    while waiting:
        path = waiting.pop().resolve()
        if path in seen:
            continue
        seen.add(path)
        links = [link for link in Page(path.read_text()).links if link.endswith(".html")]
        waiting += [path.parent / link for link in links]
    assert seen == {path.resolve() for path in site.rglob("*.html")}


def test_numbers_are_those_of_publish(runs, site, tmp_path):
    formats = [word for one in ("csv", "parquet", "json-stat") for word in ("--format", one)]
    out = tmp_path / "published"
    assert CliRunner().invoke(main, ["publish", str(runs["first"]), "--out", str(out), *formats]).exit_code == 0
    (home,) = (site / FOLDER / "editions").glob(f"{dp.Release.open(runs['first']).manifest['release'][:16]}*")
    tables = {path.stem: path for path in (out / "csv").iterdir()}
    assert len(tables) == len(list((home / "csv").iterdir()))
    statement = next(name for name in tables if name.endswith("-young"))
    assert (home / "csv" / "select~young.csv").read_bytes() == tables.pop(statement).read_bytes()
    for name, path in tables.items():
        parts = name.partition("-")[2].split("-")
        address = "~".join(parts) if parts[0] in ("sum", "mean") else "-".join(sorted(parts))
        assert (home / "csv" / f"{address}.csv").read_bytes() == path.read_bytes()
        assert (home / "parquet" / f"{address}.parquet").read_bytes() == (out / f"parquet/{name}.parquet").read_bytes()
        stated = json.loads((home / "json-stat" / f"{address}.json").read_text())
        assert stated == json.loads((out / "json-stat" / f"{name}.json").read_text())
        frame, rows = pd.read_csv(path, keep_default_na=False), rows_of(home / "tables" / f"{address}.html")
        value = "value" if "value" in frame else "count"
        place = list(frame).index(value)
        assert [float(row[place][0]) for row in rows] == frame[value].astype(float).tolist()
        if value == "count":
            assert [row[place][1].replace("○", "").strip() for row in rows] == [f"{one:,}" for one in frame["count"]]
            shape = stated["size"][:-1]
            low, high = (np.array(stated["value"]).reshape(-1, shape and stated["size"][-1])[:, at] for at in (1, 2))
            ends = [re.findall(r"[\d,.]+", row[place + 1][1]) for row in rows]
            assert [float(one[1].replace(",", "")) for one in ends] == pytest.approx(high, rel=0.1, abs=1)
            assert [float(one[0].replace(",", "")) for one in ends] == pytest.approx(low, rel=0.1, abs=1)


def test_statement_has_the_rows_of_the_release(runs, site):
    opened = dp.Release.open(runs["first"])
    rows = rows_of(site / FOLDER / "tables" / "select~young.html")
    found = opened.query("young")
    assert [row[0][1] for row in rows] == ["women", f"men {PLANTED}"]
    assert [float(row[1][1].split()[0].replace(",", "")) for row in rows] == pytest.approx(found["n"], abs=1)
    stated = pd.read_parquet(site / FOLDER / "parquet" / "select~young.parquet")
    assert stated["fee"].tolist() == pytest.approx(found["fee"].tolist(), abs=found["fee_std_error"].min() / 100)
    assert "fee_flag" in stated


def test_addresses_stay_when_releases_are_added(runs, tmp_path):
    build(tmp_path / "one", runs["first"])
    build(tmp_path / "more", runs["shop"], runs["second"], runs["growing"], runs["first"])
    before, after = files_of(tmp_path / "one"), files_of(tmp_path / "more")
    assert set(before) <= set(after)
    data = [name for name in before if "/editions/" in name and not name.endswith(".html")]
    assert data
    assert all(before[name] == after[name] for name in data)


def test_order_of_directories_and_repetitions_do_not_matter(runs, tmp_path):
    build(tmp_path / "a", runs["first"], runs["second"], runs["shop"])
    build(tmp_path / "b", runs["shop"], runs["second"], runs["first"], runs["second"])
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_newest_edition_has_the_permanent_address_and_older_ones_stay(runs, site):
    first, second = (dp.Release.open(runs[name]) for name in ("first", "second"))
    homes = [f"editions/{own.manifest['release'][:16]}" for own in (second, first)]
    page = (site / FOLDER / "tables" / "age-sex.html").read_text()
    assert [home for home in re.findall(r"editions/[^/]+", page)] == homes
    csv = {home: (site / FOLDER / home / "csv" / "age-sex.csv").read_bytes() for home in homes}
    assert (site / FOLDER / "csv" / "age-sex.csv").read_bytes() == csv[homes[0]] != csv[homes[1]]
    assert "An older edition" not in page
    assert "An older edition" in (site / FOLDER / homes[1] / "tables" / "age-sex.html").read_text()
    lost = (site / FOLDER / "tables" / "code.html").read_text()  # the newest release does not have it
    assert "does not have this page" in lost
    assert not (site / FOLDER / homes[0] / "tables" / "code.html").exists()
    listed = json.loads((site / "site.json").read_text())["releases"]
    assert {one["release"] for one in listed} >= {first.manifest["release"], second.manifest["release"]}
    assert all((site / one["address"]).is_file() for own in listed for one in (own, *own["tables"]))


def test_growing_table_is_a_series_of_its_periods(runs, site):
    opened = dp.Release.open(runs["growing"])
    for kind, folder in (("period", ""), ("cumulative", "cumulative"), ("window", "window")):
        found = pd.read_csv(site / "growing" / folder / "csv" / "a-b.csv")
        assert list(dict.fromkeys(found["month"])) == MONTHS[:3]
        for month in MONTHS[:3]:
            own = opened.at(month, kind)
            published = publish(own.answered, chosen(own.answered, [], None))
            (expected,) = finished_tables(own.domain, published, 0.5, 0)
            assert found[found["month"] == month]["count"].tolist() == expected.table["count"].to_pylist()
        page = (site / "growing" / folder / "tables" / "a-b.html").read_text()
        assert "Over time" in page
        assert page.count('stroke="var(--c') >= 5
        rows = rows_of(site / "growing" / folder / "tables" / "a-b.html")
        assert [row[0][1] for row in rows[::12]] == MONTHS[2::-1]
    stated = json.loads((site / "growing" / "json-stat" / "a-b.json").read_text())
    assert stated["size"][:3] == [3, 3, 4]


def test_tables_of_a_database_have_folders(site):
    for name, address in (("persons", "age-sex"), ("orders", "amount-month")):
        assert (site / "shop" / f"table-{name}" / "tables" / f"{address}.html").is_file()


def test_hidden_counts_keep_their_flags(runs, tmp_path):
    build(tmp_path / "site", runs["first"], more=["--minimum", 150, "--limit", 0.05])
    frame = pd.read_csv(tmp_path / "site" / FOLDER / "csv" / "age-sex.csv", keep_default_na=False)
    rows = rows_of(tmp_path / "site" / FOLDER / "tables" / "age-sex.html")
    assert {"minimum", "unreliable", ""} == set(frame["flag"])
    for row, (_, own) in zip(rows, frame.iterrows(), strict=True):
        (key, text), flag = row[2], row[-1][1]
        assert flag == own["flag"]
        if flag == "minimum":
            assert (key, text.strip(), row[3][1], own["count"]) == ("-Infinity", "—", "", "")
    page = (tmp_path / "site" / FOLDER / "tables" / "age-sex.html").read_text()
    cross = page[page.index('<table class="heat">') : page.index("</table>")]
    assert cross.count("—") == (frame["flag"] == "minimum").sum()
    assert not list((tmp_path / "site").rglob("select~*")), "their rows would show hidden counts"


def test_privacy_page_has_the_figures_of_the_ledger(runs, tmp_path):
    place = runs["first"].parent / "ledger.sqlite"
    with Ledger.open(place, create=False) as ledger:
        stated = ledger.summary("small")["datasets"]["small"]
    build(tmp_path / "site", runs["first"])
    page = (tmp_path / "site" / "privacy.html").read_text()
    assert f"2 releases of the dataset small cost ε = {stated['spent']['epsilon']:.4g} at δ = 10⁻⁹ in total" in page
    left = f"one more release may cost ε = {stated['remaining_epsilon']:.4g} at"
    assert f"The cap of the total is ε = 5 at δ = 10⁻⁹; {left}" in page
    assert "The release protects every single row, which counts once." in page
    for row in stated["releases"]:
        assert f"<code>{row['release']}</code></td><td>{row['reserved_at'][:10]}" in page
        assert f'data-key="{row["own"]["epsilon"]}"' in page
    assert page.count(">no</td>") == 1, "the second release is not on this site"
    assert str(place.parent) not in page


def test_privacy_page_without_a_ledger_says_so(runs, tmp_path):
    place = runs["first"].parent / "ledger.sqlite"
    place.rename(place.with_suffix(".moved"))
    try:
        build(tmp_path / "site", runs["first"], runs["second"])
        build(tmp_path / "named", runs["first"], more=["--ledger", place.with_suffix(".moved")])
    finally:
        place.with_suffix(".moved").rename(place)
    page = (tmp_path / "site" / "privacy.html").read_text()
    assert "No ledger could be read" in page
    assert "they cost at most ε = 2 at δ = 2 × 10⁻⁹, the sums" in page
    assert "state of the ledger" in (tmp_path / "named" / "privacy.html").read_text()


def test_ledger_without_the_release_is_refused(runs, tmp_path):
    other = str(runs["growing"].parent / "ledger.sqlite")
    words = ["site", str(runs["first"]), "--out", str(tmp_path / "site"), "--ledger", other]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "is not in" in result.output) == (3, True)
    assert not (tmp_path / "site").exists()


def test_labels_are_escaped(site):
    texts = [path.read_text() for path in site.rglob("*.html")]
    assert sum("&lt;script&gt;window.planted" in text for text in texts) > 20
    assert not any("<script>window" in text for text in texts)


def test_nothing_private_is_on_the_site(runs, site):
    place = runs["first"].parent
    snapshots = [dp.Release.open(path).manifest.get("snapshot") for path in runs.values()]
    secrets = [str(place), place.name, "part-0000", "ledger.sqlite", "domain.toml", *filter(None, snapshots)]
    assert len(secrets) > 6
    for name, content in files_of(site).items():
        assert [secret for secret in secrets if secret.encode() in content] == [], name


def test_building_changes_no_run_and_repeats_its_bytes(runs, site, tmp_path):
    before = files_of(runs["first"].parent)
    build(tmp_path / "again", *runs.values())
    assert files_of(runs["first"].parent) == before
    assert files_of(tmp_path / "again") == files_of(site)


def test_older_site_is_replaced_and_other_folders_are_refused(runs, tmp_path):
    out = tmp_path / "site"
    build(out, runs["first"])
    (out / "stray.html").write_text("old")
    build(out, runs["second"])
    assert not (out / "stray.html").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "link").symlink_to(out)
    for folder, reason in (("mine", "contains other files"), ("link", "symbolic link")):
        result = CliRunner().invoke(main, ["site", str(runs["first"]), "--out", str(tmp_path / folder)])
        assert (result.exit_code, reason in result.output) == (2, True)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    result = CliRunner().invoke(main, ["site", str(tmp_path / "mine"), "--out", str(out)])
    assert result.exit_code == 2
    assert (out / "site.json").is_file(), "a refusal leaves the older site"


def test_many_rows_are_in_parts(runs, tmp_path, monkeypatch):
    build(tmp_path / "whole", runs["first"])
    monkeypatch.setattr("dpscale.answers.site.pages.EMBEDDED", 6)
    build(tmp_path / "parts", runs["first"])
    page = tmp_path / "parts" / FOLDER / "tables" / "age-sex.html"
    scripts = [page.with_name(f"age-sex.rows-{number}.js").read_text() for number in (1, 2)]
    assert not page.with_name("age-sex.rows-3.js").exists()
    rest = [Page(json.loads(text.removeprefix("addRows(").removesuffix(");\n"))).rows for text in scripts]
    joined = [*rows_of(page), *itertools.chain(*rest)]
    assert joined == rows_of(tmp_path / "whole" / FOLDER / "tables" / "age-sex.html")
    assert "The page starts with 6 of 16 rows" in page.read_text()
    assert EMBEDDED == 2000


def test_addresses_of_different_names_differ():
    names = [
        "age",
        "Age",
        "AGE ",
        "a-ge",
        "a ge",
        "a_ge",
        "con",
        "com1",
        "é",
        "年齢",
        "x" * 300,
        "x" * 301,
        "",
        ".",
        "a.b",
    ]
    found = [address_of_name(name) for name in names]
    assert len({one.lower() for one in found}) == len(names)
    assert all(re.fullmatch("[a-z0-9_.]{1,90}", one) for one in found)
    assert address_of_names(["b", "a"]) == address_of_names(["a", "b"]) == "a-b"
    assert address_of_names(["a-b"]) != address_of_names(["a", "b"])
    long = [[f"attribute_{number}" for number in range(count)] for count in (20, 21)]
    assert len({address_of_names(one) for one in long}) == 2
    titles = ["Visits", "visités", "訪問", "訪問者", "", "x" * 300, "CON"]
    assert len({address_of_title(one) for one in titles}) == len(titles)
    assert all(re.fullmatch("[a-z0-9-]{1,100}", address_of_title(one)) for one in titles)


def test_permanent_pages_name_no_moment_of_building(site):
    days = {dp_day for path in site.rglob("*.html") for dp_day in re.findall(r"\d{4}-\d\d-\d\d", path.read_text())}
    assert len(days) <= 2  # of the releases


def test_datasets_without_a_name_need_titles(tmp_path):
    paths = []
    for name in ("secret-one", "secret-two"):
        (tmp_path / name).mkdir()
        write_table(tmp_path / name / "data", table(90))
        job = write_job(tmp_path / name, privacy={"epsilon": 1.0}, workload=[{"family": "marginal", "degree": 1}])
        paths.append(dp.run(job, tmp_path / name / "run").path)
    build(tmp_path / "one", paths[0])
    assert (tmp_path / "one" / "the-dataset" / "tables" / "age.html").is_file()
    result = CliRunner().invoke(main, ["site", *map(str, paths), "--out", str(tmp_path / "site")])
    assert (result.exit_code, "about.title: missing in releases of 2 datasets" in result.output) == (2, True)
    assert "secret" not in result.output
    stored = paths[1] / "job.toml"
    stored.write_text(stored.read_text() + '\n[about]\ntitle = "Two"\n')
    build(tmp_path / "site", *paths)
    assert {one.name for one in (tmp_path / "site").iterdir()} >= {"the-dataset", "two"}
