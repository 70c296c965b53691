"""Fenced code blocks of all pages, with page, language and text."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "cluster/*.md", "pipelines/**/*.md", "data/*.md")
    for path in sorted(ROOT.glob(pattern))
]
BLOCK = re.compile(r"^([ ]*)```([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    page: str
    number: int
    language: str
    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.number}"


def snippets():
    """Yield all blocks of all pages."""
    for path in PAGES:
        for number, (_, info, text) in enumerate(BLOCK.findall(path.read_text()), 1):
            language, _, file = info.partition(" ")
            yield Snippet(str(path.relative_to(ROOT)), number, language, file, textwrap.dedent(text))


def snippets_of(language, *pages):
    """Return the blocks of a language, of the given pages or of all."""
    return [one for one in snippets() if one.language == language and (not pages or one.page in pages)]
