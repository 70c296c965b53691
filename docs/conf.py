"""Sphinx configuration of the documentation (`make docs`): Markdown pages, references from models and docstrings."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

project = "dpscale"
extensions = ["sphinx.ext.napoleon", "myst_parser", "sphinx.ext.autodoc", "sphinx_click", "around", "job_file"]

html_theme = "furo"
html_title = "dpscale"
html_copy_source = html_show_copyright = html_show_sphinx = False
html_theme_options = {"source_edit_link": None, "top_of_page_buttons": []}

myst_heading_anchors = 4
myst_links_external_new_tab = False
nitpicky = False  # docstrings are plain text: types in signatures name numpy's and Dask's own
suppress_warnings = ["myst.strikethrough"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
