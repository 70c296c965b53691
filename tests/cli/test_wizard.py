"""`dpscale wizard`: the whole way in Chromium, the same files and refusals as the command line, and who may ask."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.cli.wizard.guide import Guide
from dpscale.cli.wizard.server import LARGEST, WizardServer
from dpscale.records.sketch import WARNING, make_sketch
from tests.answers.chromium import BROWSER, drive_page
from tests.answers.test_report_pages import LOOK, axe_script

ROOT = Path(__file__).parents[2]
CHOSEN = {"changes": [], "left_out": [], "reviewed": False, "about": {}, "unit": "", "bound": "", "epsilon": "1.0",
          "delta": "1e-9", "tables": [{}]}  # fmt: skip
READY = (
    "document.readyState === 'complete' && location.search === '' && document.querySelectorAll('#steps button').length"
)
browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a table as CSV and as Parquet."""
    rng, rows = np.random.default_rng(7), 2000
    age, town = rng.integers(0, 95, rows), rng.choice(["Bonn", "Köln", "Ulm"], rows)
    cost, smoker = np.round(rng.gamma(2, 40 + age / 2), 2), rng.random(rows) < 0.2
    frame = pd.DataFrame({"person": rng.integers(1, 900, rows), "age": age, "town": town, "note": "stays at home",
                          "smoker": smoker, "cost": cost})  # fmt: skip
    frame.to_csv(tmp_path / "visits.csv", index=False)
    frame.to_parquet(tmp_path / "visits.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def server(folder):
    """A server of the wizard in this process, which answers until the end of the test."""
    with WizardServer(Guide(make_sketch("visits.csv"), "visits.csv", {}, folder)) as server:
        thread = threading.Thread(target=server.run, args=(60,))
        thread.start()
        yield server
        server.finished = True
        thread.join()


def ask(server, method, path, body=None, **headers):
    """Return status, headers and text of the answer to a request; a header of None is left out."""
    known = {"Host": server.host, "Origin": f"http://{server.host}", "Cookie": f"{server.cookie}={server.session}",
             "Content-Type": "application/json"}  # fmt: skip
    connection = http.client.HTTPConnection(server.host, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    for name, value in {**known, "Content-Length": str(len(sent)), **headers}.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(sent)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def choose(server, path="/draft", **changes):
    status, _, text = ask(server, "POST", path, CHOSEN | changes)
    assert status == 200
    return json.loads(text)


def run_command(*words):
    done = CliRunner().invoke(main, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done


def test_token_opens_one_session(server):
    address = server.address.removeprefix(f"http://{server.host}")
    assert server.host.startswith("127.0.0.1:")
    assert ask(server, "GET", "/", Cookie=None)[0] == 403
    assert ask(server, "GET", "/?token=wrong", Cookie=None)[0] == 403
    status, headers, text = ask(server, "GET", address, Cookie=None)
    assert status == 200
    assert "visits" not in text
    cookie = headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    status, headers, text = ask(server, "GET", address, Cookie=None)
    assert (status, headers["Set-Cookie"], "used before" in text) == (403, None, True)
    status, headers, page = ask(server, "GET", "/", Cookie=cookie.split(";")[0])
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert headers["Cache-Control"] == "no-store"
    assert WARNING in page
    assert not re.search(r"(src|href)=.?(https?:|//)", page)
    assert server.session not in page


@pytest.mark.parametrize("headers", [
    {"Host": "localhost"}, {"Host": "evil.example:80"}, {"Host": None}, {"Cookie": None}, {"Cookie": "dpscale=x"},
    {"Origin": None}, {"Origin": "null"}, {"Origin": "http://evil.example"}, {"Origin": "http://127.0.0.1:1"},
])  # fmt: skip
def test_planted_requests_of_other_sites_are_refused(server, headers):
    status, _, text = ask(server, "POST", "/write", CHOSEN, **headers)
    assert (status, "visits" in text) == (403, False)
    if "Origin" not in headers:
        status, _, text = ask(server, "GET", "/", **headers)
        assert (status, "visits" in text) == (403, False)
    assert not list(Path.cwd().glob("*.toml"))


def test_other_requests_are_refused(server):
    assert ask(server, "POST", "/write", b"{")[0] == 400
    assert ask(server, "POST", "/write", b"[" * 100_000)[0] == 400
    assert ask(server, "POST", "/write", CHOSEN, **{"Content-Type": "text/plain"})[0] == 415
    assert ask(server, "POST", "/write", b"", **{"Content-Length": str(LARGEST + 1)})[0] == 413
    assert ask(server, "POST", "/write", b"", **{"Content-Length": "-1"})[0] == 413
    assert ask(server, "POST", "/run", CHOSEN)[0] == 404
    assert ask(server, "GET", "/../visits.csv")[0] == 404
    assert ask(server, "PUT", "/write", CHOSEN)[0] == 501
    assert "fault of dpscale" in json.loads(ask(server, "POST", "/write", {"changes": "Bonn"})[2])["refused"]


def test_unchanged_drafts_are_those_of_domain_sketch(server, folder):
    assert choose(server, "/write")["written"] == ["visits.domain.toml", "visits.job.toml"]
    found = [(folder / f"visits.{name}.toml").read_bytes() for name in ("domain", "job")]
    for path in folder.glob("*.toml"):
        path.unlink()
    run_command("domain", "sketch", "visits.csv", "--output", "visits.domain.toml", "--job", "visits.job.toml")
    assert found == [(folder / f"visits.{name}.toml").read_bytes() for name in ("domain", "job")]


def test_files_are_replaced_only_after_a_yes(server, folder):
    other = folder / "kept.toml"
    other.write_text("kept")
    (folder / "visits.domain.toml").symlink_to(other)
    (folder / "visits.job.toml").write_text("before")
    assert choose(server, "/write") == {"present": ["visits.domain.toml", "visits.job.toml"]}
    assert (folder / "visits.job.toml").read_text() == "before"
    assert choose(server, "/write", replace=True)["written"]
    assert other.read_text() == "kept"
    assert (folder / "visits.job.toml").read_text() != "before"
    assert (folder / "visits.domain.toml").stat().st_mode & 0o77 == 0
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["kept.toml", "visits.csv", "visits.parquet", "visits.domain.toml", "visits.job.toml"]
    )


@pytest.mark.parametrize("changes", [
    {"reviewed": False},
    {"changes": [["attributes", "age", "low", "120"]]},
    {"changes": [["attributes", "age", "high", "1,5"]]},
    {"changes": [["attributes", "cost", "edges", "0\n10\n5"]]},
    {"changes": [["attributes", "town", "kind", "integer"]]},
    {"changes": [["attributes", "smoker", "labels", "maybe = x"]]},
    {"changes": [["numbers", "cost_value", "high", "-5"]]},
    {"left_out": ["age", "town", "smoker", "cost", "note"]},
    {"epsilon": ""}, {"epsilon": "ten"}, {"epsilon": "-1"}, {"epsilon": "30"}, {"epsilon": "0,5"}, {"delta": "2"},
    {"unit": "person"}, {"unit": "person", "bound": "0"}, {"unit": "person", "bound": "many"}, {"tables": []},
    {"tables": [{"attributes": ["nothing"]}]}, {"tables": [{"attributes": ["town"], "of": "fare"}]},
])  # fmt: skip
def test_refusals_are_those_of_the_command_line_and_nothing_is_written(server, folder, changes):
    chosen = {"reviewed": True, **changes}
    found = choose(server, **chosen)
    assert found["refused"]
    if chosen["reviewed"]:
        assert choose(server, "/write", **chosen)["refused"] == found["refused"]
        assert not list(folder.glob("*.toml"))
    (folder / "visits.domain.toml").write_text(found["domain"])
    (folder / "visits.job.toml").write_text(found["job"])
    done = run_command("plan", "visits.job.toml", "--quiet")
    assert (done.exit_code, done.stderr) == (2, f"dpscale: {found['refused']}\n")


def test_choices_become_keys_of_the_files(server):
    changes = [["attributes", "age", "kind", "bins"], ["attributes", "age", "edges", "0\n18\n65.5\n120"],
               ["attributes", "age", "title", "Age"], ["attributes", "town", "values", "Bonn\nKöln"],
               ["attributes", "smoker", "labels", "true = smokes\nfalse = does not"],
               ["numbers", "cost_value", "high", "500"]]  # fmt: skip
    sets = [{"attributes": ["age", "town"]}, {"of": "cost_value", "attributes": ["town"]}, {"attributes": ["smoker"]},
            {"of": "cost_value", "attributes": []}]  # fmt: skip
    found = choose(server, "/write", reviewed=True, changes=changes, left_out=["note"], unit="person", bound="3",
                   epsilon="0.5", delta="", tables=sets, about={"title": 'Visits "2025"'})  # fmt: skip
    assert (found["refused"], len(found["commands"])) == ("", 3)
    domain = dp.Domain.read("visits.domain.toml")
    assert domain.names == ("age", "town", "smoker", "cost")
    assert (domain["age"].edges, domain["age"].words.title) == ((0, 18, 65.5, 120), "Age")
    assert domain["town"].values == ("Bonn", "Köln")
    assert domain["smoker"].words.labels["true"] == "smokes"
    assert domain["cost_value"].describe()["high"] == 500
    assert "left out: 'note' (left out by the person" in Path("visits.domain.toml").read_text()
    job = dp.plan("visits.job.toml").content
    assert job["data"] == {"path": "visits.csv", "domain": "visits.domain.toml", "privacy_unit": "person",
                           "max_rows_per_unit": 3}  # fmt: skip
    assert job["privacy"] == {"epsilon": 0.5, "dataset": "visits"}
    assert job["about"] == {"title": 'Visits "2025"'}
    assert job["workload"] == [{"family": "marginal", "attributes": [["age", "town"], ["smoker"]]},
                               {"family": "mean", "of": "cost_value", "attributes": [["town"], []]}]  # fmt: skip


@pytest.mark.parametrize("data", ["visits.csv", "visits.parquet"])
def test_categories_of_a_column_of_numbers_are_numbers(folder, data):
    changes = [["attributes", "age", "kind", "categories"], ["attributes", "age", "values", "20\n21\n22.0\n90"],
               ["attributes", "age", "outside", "category"]]  # fmt: skip
    with WizardServer(Guide(make_sketch(data), data, {}, folder)) as server:
        found = server.guide.write(CHOSEN | {"reviewed": True, "changes": changes})
    assert found["refused"] == ""
    assert dp.Domain.read("visits.domain.toml")["age"].values == (20, 21, 22, 90)
    job = dp.plan("visits.job.toml").content
    rough = {"rho": 1e9, "allow_weak_privacy": True, "dataset": "visits"}
    counts = dp.run(job | {"privacy": rough}, "run", progress=None).marginal("age")
    age = pd.read_parquet("visits.parquet").age
    listed = [int((age == value).sum()) for value in (20, 21, 22, 90)]
    assert np.rint(counts).tolist() == [*listed, len(age) - sum(listed)]


def test_planted_names_of_columns_are_texts(folder):
    name = """a"'><img src=x onerror=alert(1)>"""
    pd.DataFrame({name: [1, 2, 3], "b": [1, 2, 3]}).to_parquet("odd.parquet")
    with WizardServer(Guide(make_sketch("odd.parquet"), "odd.parquet", {}, folder)) as server:
        page, kept = server.files["/"][1], server.guide.draft(CHOSEN | {"reviewed": True})
    assert "<img" not in page
    assert [one["name"] for one in kept["attributes"]] == [name, "b"]
    assert kept["refused"] == ""


def test_it_stops_without_requests(folder):
    with WizardServer(Guide(make_sketch("visits.csv"), "visits.csv", {}, folder)) as server:
        assert "it has stopped" in server.run(0.1)


@contextmanager
def wizard(data):
    """Start `dpscale wizard` in the current folder; yield the process and its address."""
    command = [sys.executable, "-m", "dpscale", "wizard", data, "--no-browser"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield process, re.search(r"http://\S+", process.stdout.readline())[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT of another process")
def test_it_ends_by_the_keyboard(folder):
    with wizard("visits.csv") as (process, _):
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        printed, warned = process.communicate(timeout=60)
    assert (process.returncode, printed, warned.strip()) == (0, "", WARNING)


ROWS = "[...document.querySelectorAll('#errors .bars tr')]"
ERRORS = f"{ROWS}.map((one) => one.innerText.split('±').map((part) => part.trim()))"
IDLE = "document.getElementById('main').ariaBusy === 'false'"


async def look(talk, name, pictures):
    """Check a step of the page at three widths: no scrolling sideways, contrast, accessibility."""
    for width, height in ((360, 800), (768, 1000), (1440, 900)):
        await talk.resize(width, height)
        if pictures:
            await talk.picture(Path(pictures) / f"{name}-{width}.png")
    opened = "document.querySelectorAll('details').forEach((one) => { one.open = STATE; })"
    await talk.evaluate(opened.replace("STATE", "true"))
    for width, height in ((1440, 900), (768, 1000), (360, 800)):
        await talk.resize(width, height)
        found = await talk.evaluate(LOOK)
        assert (found["wider"], found["faint"], found["anchors"]) == (0, [], []), (name, width)
    assert await talk.evaluate(axe_script()) == [], name
    await talk.evaluate(opened.replace("STATE", "false"))
    await talk.resize(1440, 900)


async def whole_way(talk):
    """Go from the draft to the files, by mouse, text and keyboard; return the errors at two budgets and their text."""
    pictures = os.environ.get("WIZARD_PICTURES")
    await talk.until(READY)
    await look(talk, "1-columns", pictures)
    assert "reviewed: False" in await talk.until("document.getElementById('refused').textContent")
    await talk.click("details.column summary")
    await talk.write("[data-name=age][data-key=high]", "1,5")
    await talk.until("document.getElementById('refused').textContent.startsWith('attributes.age.high: ')")
    await talk.write("[data-name=age][data-key=high]", "120")
    await talk.write("[data-name=age][data-key=title]", "Age")
    await talk.click("#reviewed")
    await talk.until(f"{IDLE} && !document.getElementById('refused').textContent")

    await talk.click("#next")
    await talk.evaluate("document.getElementById('unit').focus()")
    await talk.press("ArrowDown")
    await talk.write("#bound", "4")
    await look(talk, "2-unit", pictures)

    await talk.evaluate("document.getElementById('next').focus()")
    await talk.press("Enter")
    assert await talk.evaluate("document.activeElement.textContent") == "Which tables?"
    await talk.press("Tab", 2)  # the button that removes the table of the draft, and the first attribute
    await talk.press(" ")
    await talk.press("Tab")
    await talk.press(" ")
    await talk.click("#add")
    await look(talk, "3-tables", pictures)

    await talk.click("#next")
    await talk.until(f"{IDLE} && document.querySelectorAll('#errors .bars tr').length === 6")
    first = await talk.evaluate(ERRORS)
    await look(talk, "4-budget", pictures)
    await talk.evaluate("document.getElementById('scale').focus()")
    await talk.press("ArrowDown")
    assert await talk.evaluate("document.getElementById('epsilon').value") == "0.89"
    await talk.write("#epsilon", "0.5")
    await talk.until(f"{IDLE} && !{ROWS}[0].innerText.includes('± {first[0][1]}')")
    second, text = await talk.evaluate(ERRORS), await talk.evaluate("document.getElementById('text').textContent")

    await talk.click("#next")
    await talk.click("#write")
    await talk.until("document.getElementById('outcome').textContent.includes('exist')")
    assert Path("visits.job.toml").read_text() == "kept until the yes"
    await look(talk, "5-files", pictures)
    await talk.click("#replace")
    commands = await talk.until("document.querySelector('#outcome pre')?.textContent")
    await look(talk, "6-written", pictures)
    await talk.click("#finish")
    await talk.until("!document.getElementById('steps')")
    assert talk.console == []
    return first, second, text, commands.splitlines()


@browser
@pytest.mark.parametrize("data", ["visits.csv", "visits.parquet"])
def test_whole_way_in_a_browser(folder, data):
    (folder / "visits.job.toml").write_text("kept until the yes")
    with wizard(data) as (process, address):
        first, second, text, commands = drive_page(address, whole_way)
        printed, warned = process.communicate(timeout=60)
    assert process.returncode == 0
    assert printed.splitlines()[-1] == "the wizard is finished"
    assert warned.strip() == WARNING  # and no value of the data
    assert [one.split(" dpscale ")[1] for one in commands] == [
        f"{step} visits.job.toml" for step in ("check job", "plan", "run")
    ]

    planned = run_command("plan", "visits.job.toml", "--quiet").stdout.splitlines()
    assert text.splitlines() == [line for line in planned if "planning seconds" not in line]
    exact = {
        one["family"]: one for one in json.loads(run_command("plan", "visits.job.toml", "--json").stdout)["families"]
    }
    worst = {", ".join(one["attributes"]): one["error"] for family in exact.values() for one in family["worst"]}
    drawn = {label.replace(" × ", ", "): float(error.replace(",", "")) for label, error in second}
    assert drawn.keys() == worst.keys()
    for name, error in worst.items():
        assert drawn[name] == pytest.approx(error, rel=5e-3)
    assert all(float(low[1]) < float(high[1]) for low, high in zip(first, second, strict=True))

    assert run_command("check", "job", "visits.job.toml").exit_code == 0
    done = run_command("run", "visits.job.toml", "--run-dir", "release", "--quiet")
    assert done.exit_code == 0, done.stderr
    release = dp.Release.open("release")
    assert len(release.table(["age", "town"])) == 121 * 4
    assert release.manifest["privacy"]["epsilon"] == 0.5
