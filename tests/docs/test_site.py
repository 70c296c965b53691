"""The site: its parts, the reference of Python, the notebook, and its search in a browser."""

import functools
import http.server
import importlib
import re
import subprocess
import sys
import threading
import warnings

import pytest

import dpscale as dp
from dpscale.api.public import SpentWarning
from tests.answers.chromium import BROWSER, read_page
from tests.docs.snippets import ROOT, snippets_of

PARTS = ["Tutorials", "How-to guides", "Coming from other tools", "Reference", "Explanation", "Project"]
SEARCH = """(async () => {
  for (let tries = 0; tries < 100 && !/finished|did not match/.test(document.body.textContent); tries++)
    await new Promise(done => setTimeout(done, 100));
  return [...document.querySelectorAll("#search-results li a")].map(one => one.textContent);
})()"""


def test_landing_page_has_one_example_one_picture_and_the_parts():
    text = (ROOT / "docs" / "index.md").read_text()
    assert re.findall(r":caption: (.*)", text) == PARTS
    assert text.count("```python") == text.count("![") == 1


def test_reference_of_python_has_every_public_name():
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    errors = set(vars(importlib.import_module("dpscale.base.errors")))
    named = {name.rpartition(".")[2] for name in re.findall(r"\.\. auto\w+:: ([\w.]+)", text)}
    assert set(dp.__all__) - errors - named == {"privacy"}
    assert set(dp.privacy.__all__) <= named


def test_notebook_runs_and_is_stored_without_outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path / "user"))
    warnings.simplefilter("ignore", SpentWarning)
    cells, names = snippets_of("{code-cell}", "docs/notebook.md"), {}
    for cell in cells:
        exec(compile(re.sub(r"^:tags:.*\n", "", cell.text), str(cell), "exec"), names)
    assert len(cells) > 5
    assert names["release"].total().estimate == pytest.approx(3000, abs=600)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Address of the built site."""
    for name in ("furo", "myst_nb", "sphinx_click"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet", "-b", "html", "docs", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
@pytest.mark.parametrize(("word", "page"), [("quantile", "Python"), ("Tumult", "Coming from Tumult Analytics"),
                                            ("rows_per_unit", "Python"), ("zzzz", None)])  # fmt: skip
def test_search_finds_words(address, word, page):
    found = read_page(f"{address}/search.html?q={word}", SEARCH)
    assert found == [] if page is None else page in found
