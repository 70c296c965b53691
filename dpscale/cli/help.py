"""Command `help`: pages of the documentation that are installed with the package, their sections and keys.

`dpscale help jobs data.format` prints what the page says on one key and the section to which it refers. Every refusal
names such a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import click

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.cli.group import main

PAGES = Path(__file__).with_name("pages")
HEADING = re.compile(r"^(#+) (.*)")
MARKED = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)  # paragraph that begins with its subject in bold
LINK = re.compile(r"\[([^\]]*)\]\(([^)#]*)(?:#([^)]*))?\)")
ELSEWHERE = {"README": "cluster-setup"}  # pages with another name in the repository
TABLES = {"key": "attributes", "key of kind": "attributes", "key of": "numbers"}  # by the first words of a header
DOMAIN = "domain-file"  # section of the keys of attributes and numbers


@dataclass(frozen=True)
class Row:
    """Row of a table of keys.

    Attributes
    ----------
    table : str
        Table of the job or domain file.
    keys : tuple of str
    text : str
        Their meaning.
    """

    table: str
    keys: tuple[str, ...]
    text: str


@main.command("help")
@click.argument("page", required=False)
@click.argument("key", required=False)
@click.pass_context
def show_help(context: click.Context, page: str | None, key: str | None) -> None:
    """Print a page of the documentation: its sections, a section, or a key, as in `dpscale help jobs data.format`."""
    if page is None:
        click.echo("\n".join(_pages()))
        return
    command = _command_help(context, page, key)
    found = [] if page not in page_names() else [_sections(page) if key is None else topic(page, key)]
    if not command and not found:
        known = [*page_names(), *main.commands]
        raise JobError("help", f"{page!r}", "a page or a command", nearest(page, known))
    click.echo("\n\n".join([*command, *found]))


def page_names() -> list[str]:
    """Return the names of all pages."""
    return sorted(path.stem for path in PAGES.glob("*.md") if path.is_file())


def topic(page: str, key: str) -> str:
    """Return what a page says on a key, such as data.format, or a section, such as run-directory.

    Parameters
    ----------
    page : str
        Name of a page.
    key : str
        Table and key of a job or domain file, a table alone, the heading of a section, or a word of a question.

    Returns
    -------
    str

    Raises
    ------
    JobError
        If the page has neither.
    """
    text = _read(page)
    table, _, name = key.partition(".")
    rows = [row for row in _rows(text) if row.table == table]
    named = [row for row in rows if name in row.keys]
    if named and name:
        linked = dict.fromkeys(slug for row in named for _, where, slug in LINK.findall(row.text) if slug and not where)
        return "\n\n".join([*map(_shown, named), *(_section(text, slug) for slug in linked)])
    slugs = [_slug(title) for title in _titles(text)]
    if table in TABLES.values() and DOMAIN in slugs:
        return _section(text, DOMAIN)
    if _slug(key) in slugs:
        return _section(text, _slug(key))
    if rows:
        return "\n\n".join(map(_shown, rows))
    if marked := [one for one in text.split("\n\n") if (bold := MARKED.match(one)) and key.lower() in bold[1].lower()]:
        return _plain("\n\n".join(marked))
    return _section(text, _slug(key))


def _command_help(context: click.Context, name: str, nested: str | None) -> list[str]:
    """Return the help of a command, or of a command of a group; nothing if there is none."""
    command, path = main.commands.get(name), f"dpscale {name}"
    if isinstance(command, click.Group) and nested is not None:
        command, path = command.commands.get(nested), f"{path} {nested}"
    elif nested is not None:
        return []
    return [] if command is None else [command.get_help(click.Context(command, info_name=path))]


def _pages() -> Iterator[str]:
    yield "dpscale help PAGE lists the sections of a page, dpscale help COMMAND the options of a command."
    for name in page_names():
        yield f"{name:>14}: {_titles(_read(name))[0]}"


def _sections(page: str) -> str:
    """Return the first paragraph of a page and its sections."""
    text = _read(page)
    titles = _titles(text)
    first = text.split("\n\n")[1] if len(titles) > 1 else text.split("\n", 1)[1].strip()
    sections = [f"  dpscale help {page} {_slug(title)}" for title in titles[1:]]
    return "\n".join([titles[0], "", _plain(first), *(["", *sections] if sections else [])])


def _read(page: str) -> str:
    return (PAGES / f"{page}.md").read_text(encoding="utf-8")


def _headings(text: str) -> list[tuple[int, int, str]]:
    """Return line, level and title of each heading outside blocks of code."""
    found, code = [], False
    for number, line in enumerate(text.split("\n")):
        code ^= line.startswith("```")
        if not code and (heading := HEADING.match(line)):
            found.append((number, len(heading[1]), heading[2]))
    return found


def _titles(text: str) -> list[str]:
    return [title for _, _, title in _headings(text)]


def _slug(title: str) -> str:
    """Return the name of a section in links: its words in lower case, joined by hyphens."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


def _section(text: str, slug: str) -> str:
    """Return a section with its subsections. Raises JobError if there is none."""
    headings = _headings(text)
    slugs = [_slug(title) for _, _, title in headings]
    place = next((i for i, one in enumerate(slugs) if one == slug), None)
    if place is None:
        known = {row.table for row in _rows(text)} | set(slugs)
        raise JobError("help", f"{slug!r}", "a section or a key of the page", nearest(slug, known))
    begin, level, _ = headings[place]
    inside = takewhile(lambda one: one[1] > level, headings[place + 1 :])
    later = headings[place + 1 + len(list(inside)) :]
    lines = text.split("\n")[begin : later[0][0] if later else None]
    return _plain("\n".join(lines).strip())


def _rows(text: str) -> Iterator[Row]:
    """Yield the rows of the tables of keys; an empty first cell repeats that above it."""
    kind, table = "", ""
    for line in text.split("\n"):
        cells = [one.strip() for one in line.strip("|").split(" | ")] if line.startswith("|") else []
        if not cells:
            kind = ""
        elif not kind:
            kind = re.sub(r"\s*`.*", "", cells[0])
            table = TABLES.get(kind, "")
        elif kind == "table" and len(cells) > 2:
            names = re.findall(r"`\[+(\w+)", cells[0]) or ([table] if not cells[0] else [])
            table = names[0] if names else table
            for own in names:
                yield Row(own, tuple(re.findall(r"`(\w+)`", cells[1])), " | ".join(cells[2:]))
        elif kind == "in" and len(cells) > 3:  # options of methods
            yield Row(cells[0].strip("`").split(".")[0], (cells[1].strip("`"),), f"{cells[0]}: {cells[3]} ({cells[2]})")
        elif kind in TABLES:
            keys = tuple(re.findall(r"`([\w.]+)`", re.split(", (?:of|any) ", cells[0])[0]))
            yield Row(table, keys, ": ".join(cells[1:]))


def _shown(row: Row) -> str:
    """Return a key and its meaning as lines of text."""
    names = ", ".join(f"{row.table}.{key}" for key in row.keys) or row.table
    return click.wrap_text(f"{names}: {_plain(row.text)}", width=100, subsequent_indent="    ")


def _plain(text: str) -> str:
    """Return Markdown with the command that shows more in place of each link to a page."""
    return LINK.sub(_without_link, text)


def _without_link(link: re.Match[str]) -> str:
    words, where, slug = link[1], link[2], link[3]
    stem = Path(where).stem
    page = ELSEWHERE.get(stem, stem)
    if where and (not where.endswith(".md") or page not in page_names()):
        return words
    command = f"dpscale help {page} {slug or ''}".rstrip()
    if not where:
        return words
    return command if words.endswith(".md") else f"{words} ({command})"
