"""Pages of the site that lie elsewhere in the repository; links between them and docs/, as the repository has them.

A page `around/NAME.md` takes the text of the file that it names. Links are kept where they resolve inside the site;
links to other files that exist are downloads; a link to nothing is a warning, and so an error.
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
    "around/changelog": ROOT / "CHANGELOG.md",
    "around/cluster": ROOT / "cluster" / "README.md",
    "around/pipelines": ROOT / "pipelines" / "README.md",
}
HOMES = {path: DOCS / f"{page}.md" for page, path in PAGES.items()} | {ROOT / "README.md": DOCS / "index.md"}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def taken(app: Any, page: str, source: list[str]) -> None:
    """The text of the page, with links as the site needs them."""
    real = PAGES.get(page, DOCS / f"{page}.md")
    text = real.read_text() if page in PAGES else source[0]
    source[0] = LINK.sub(lambda found: f"]({_link(page, real.parent, found[1])}{found[2] or ''})", text)


def _link(page: str, folder: Path, link: str) -> str:
    """Where a link of the file in `folder` leads from the page."""
    target = (folder / link).resolve()
    return os.path.relpath(HOMES.get(target, target), (DOCS / page).parent)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", taken)
    return {"parallel_read_safe": True}
