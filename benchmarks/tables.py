"""Fill docs/benchmarks.md from `results/*.json`, between `<!-- benchmark: NAME -->` and `<!-- end -->`.

    python benchmarks/tables.py            write docs/benchmarks.md, and the table of statistics of docs/answers.md
    python benchmarks/tables.py --check    exit with code 1 if it would change

A test compares the page with the results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from base import command_parser, load
from blocks import adaptive, papers, plans, releases, scale

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
ANSWERS = PAGE.with_name("answers.md")
STATISTICS = re.compile(r"(<!-- statistics -->\n).*?(<!-- end -->)", re.DOTALL)
BLOCK = re.compile(r"(<!-- benchmark: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
Figures = dict[str, Any]
BLOCKS: dict[str, Callable[[Figures], str]] = {
    make.__name__: make for chapter in (plans, scale, adaptive, releases, papers) for make in chapter.BLOCKS
}


def fill_blocks(text: str) -> str:
    """Return a text with every block regenerated."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]](load(found[2]))}\n{found[3]}", text)


def fill_statistics(text: str) -> str:
    """Return the page of answers with the table of statistics regenerated."""
    shown = releases.statistics_table(load("conclusions"), load("intervals"))
    return STATISTICS.sub(lambda found: f"{found[1]}{shown}\n{found[2]}", text)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    given = parser.parse_args()
    for page, fill in ((PAGE, fill_blocks), (ANSWERS, fill_statistics)):
        text = page.read_text()
        if fill(text) == text:
            continue
        if given.check:
            sys.exit(f"docs/{page.name} differs from the output of benchmarks/tables.py")
        page.write_text(fill(text))


if __name__ == "__main__":
    main()
