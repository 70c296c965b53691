"""Sphinx configuration of the documentation (`make docs`): Markdown pages, references from models and docstrings."""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

project = "dpscale"
extensions = ["sphinx.ext.napoleon", "myst_nb", "sphinx.ext.autodoc", "sphinx_click", "around"]

html_theme = "furo"
html_title = "dpscale"
html_copy_source = html_show_copyright = html_show_sphinx = False
html_theme_options = {"source_edit_link": None, "top_of_page_buttons": []}

myst_heading_anchors = 4
myst_links_external_new_tab = False
nitpicky = False  # docstrings are plain text: types in signatures name numpy's and Dask's own
suppress_warnings = ["myst.strikethrough"]

# notebooks are run offline at each build, with a ledger and releases of their own
nb_execution_mode = "force"
nb_execution_in_temp = nb_execution_raise_on_error = True
nb_execution_timeout = 120
os.environ["DPSCALE_DATA"] = tempfile.mkdtemp()
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
