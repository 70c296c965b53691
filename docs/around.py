"""Pages of the site from files outside docs/, with the links of the repository.

A page `around/NAME.md` has the text of the file that it names. Links to pages of the site stay links; links to other
existing files become downloads; a broken link is a warning, and warnings are errors.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = {
    "around/contributing": ROOT / "CONTRIBUTING.md",
    "around/security": ROOT / "SECURITY.md",
    "around/maintaining": ROOT / "MAINTAINING.md",
    "around/changelog": ROOT / "CHANGELOG.md",
    "around/cluster": ROOT / "cluster" / "README.md",
    "around/pipelines": ROOT / "pipelines" / "README.md",
}
HOMES = {path: DOCS / f"{page}.md" for page, path in PAGES.items()} | {ROOT / "README.md": DOCS / "index.md"}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def load_page(app: Any, page: str, source: list[str]) -> None:
    """Replace the text of a page by that of its file, with links for the site."""
    real = PAGES.get(page, DOCS / f"{page}.md")
    text = real.read_text() if page in PAGES else source[0]
    source[0] = LINK.sub(lambda found: f"]({_relative_link(page, real.parent, found[1])}{found[2] or ''})", text)


def _relative_link(page: str, folder: Path, link: str) -> str:
    """Return the link from the page to the target of a link of a file in `folder`."""
    target = (folder / link).resolve()
    return os.path.relpath(HOMES.get(target, target), (DOCS / page).parent)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", load_page)
    return {"parallel_read_safe": True}
