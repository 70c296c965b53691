"""Pages of a site, written into a folder that works from a file share: relative links, no server, no foreign script.

Scripts and styles are files of the site, as the Content-Security-Policy of each page demands. A page has the first rows
of its table as HTML, which are read without scripts; further ones are scripts of rows that the page loads on request,
because a page from a file share may load scripts beside it and nothing else.

*Editions.* The releases of a site are in the order of their time. Releases with the same title, or with the same
dataset if they have none, are editions of one publication. Its permanent addresses have the newest edition; each
edition also stays at an address of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dpscale.answers.publish import ABOUT, DOWNLOADS, write_tables
from dpscale.answers.report.page import compile_template, shared_file
from dpscale.answers.site.sheets import Sheet, SheetGroup, address_of_name, address_of_title, relative
from dpscale.answers.tables import texts, title_of, words_of
from dpscale.base.errors import JobError
from dpscale.storage.files import write_whole

LONGEST_ID = 16  # letters of a release's id in an address
MOST_CELLS = 2000  # cells of an attribute that its page lists

EMBEDDED = 2000  # rows of a page and of a script of rows
SITE = "site.json"
FORMAT = "dpscale-site/1"
PRIVACY = "privacy.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, eq=False)
class AttributePage:
    """Attribute or number of a release, with its words and cells, and the address of its page."""

    address: str
    group: str
    name: str
    title: str
    description: str
    unit: str
    kind: str
    cells: Sequence[tuple[str, str]] = ()
    size: int = 0


@dataclass(frozen=True, eq=False)
class Edition:
    """Release on a site.

    Attributes
    ----------
    release : str
        Public id.
    moment : str
        Time of its measurement, as an ISO 8601 text.
    dataset : str
        Public name.
    about : mapping of str to str
        Words of the job for readers.
    private : bool
        False if a seed determines the noise.
    promise : sequence of str
        Sentences on the protection of this release, the unit and bound first.
    epsilon, delta : float
        Cost of the release; infinite without protection.
    findings : sequence of str
    left_out : sequence of pairs of str
        Sets that are not published, with the reason.
    sheets : mapping of str to Sheet
    attributes : mapping of str to AttributePage
        By address in the folder of the edition.
    """

    release: str
    moment: str
    dataset: str
    about: Mapping[str, str]
    private: bool
    promise: Sequence[str]
    epsilon: float
    delta: float
    findings: Sequence[str]
    left_out: Sequence[tuple[str, str]]
    sheets: Mapping[str, Sheet]
    attributes: Mapping[str, AttributePage]

    @property
    def words(self) -> dict[str, str]:
        """Words of the job for readers, empty where it has none."""
        return {key: self.about.get(key, "") for key in ABOUT}

    @property
    def title(self) -> str:
        """Title of the publication."""
        return self.about.get("title") or self.dataset

    @property
    def folder(self) -> str:
        """Permanent folder of the publication."""
        return address_of_title(self.title)

    @property
    def home(self) -> str:
        """Folder of this edition alone."""
        return f"{self.folder}/editions/{address_of_name(self.release[:LONGEST_ID])}"

    @property
    def day(self) -> str:
        """Day of the measurement."""
        return self.moment[:10]

    def sheets_with(self, page: AttributePage) -> list[tuple[str, Sheet]]:
        """Return the tables that an attribute or number is in, with their addresses."""
        return [(address, sheet) for address, sheet in self.sheets.items() if _concerns(sheet, page)]

    def pages_of(self, sheet: Sheet) -> list[AttributePage]:
        """Return the pages of the attributes and the number of a table."""
        return [page for page in self.attributes.values() if _concerns(sheet, page)]


def _concerns(sheet: Sheet, page: AttributePage) -> bool:
    """Return whether a table has an attribute, or is one of a number."""
    number = sheet.finished.number
    return page.group in ("", sheet.group.title) and (
        page.name in sheet.finished.attributes or (number is not None and number.number.name == page.name)
    )


def attribute_pages(group: SheetGroup, sheets: Iterable[Sheet]) -> dict[str, AttributePage]:
    """Return the pages of all attributes and numbers of the tables of a group, by address."""
    domain, names, numbers = group.domain, dict[str, None](), dict[str, Any]()
    for sheet in sheets:
        names |= dict.fromkeys(sheet.finished.attributes)
        if sheet.finished.number is not None:
            numbers[sheet.finished.number.number.name] = sheet.finished.number.number
    pages = dict[str, AttributePage]()
    for name in (*filter(names.__contains__, domain.names), *numbers):
        axis = domain[name]
        place = replace(group, folder="", title="") if group.period else group  # all kinds of answers share them
        address, title = place.place("attributes", address_of_name(name)), place.title
        words = (title_of(domain, name), axis.words.description, axis.words.unit)
        # a number has a range in place of cells
        if name in numbers:
            low, high = numbers[name].ends
            kind = f"number from {low:g} to {high:g}, in steps of {float(numbers[name].unit):g}"
            pages[address] = AttributePage(address, title, name, *words, kind)
        else:
            cells = list(zip(texts(axis), words_of(axis), strict=True))
            pages[address] = AttributePage(address, title, name, *words, axis.kind, cells[:MOST_CELLS], len(cells))
    return pages


@dataclass(frozen=True)
class Publication:
    """Editions with one title, the newest first."""

    editions: tuple[Edition, ...]

    @property
    def newest(self) -> Edition:
        return self.editions[0]

    def holders(self, kind: str) -> dict[str, Edition]:
        """Return the newest edition that has each address of a kind, "sheets" or "attributes"."""
        holders = dict[str, Edition]()
        for edition in self.editions:
            for address in getattr(edition, kind):
                holders.setdefault(address, edition)
        return holders

    def versions(self, kind: str, address: str) -> list[Edition]:
        """Return the editions that have an address."""
        return [edition for edition in self.editions if address in getattr(edition, kind)]


def publications(editions: Iterable[Edition]) -> list[Publication]:
    """Return the publications of some releases by title; a release that is given twice is counted once."""
    known = {edition.release: edition for edition in editions}
    ordered = sorted(known.values(), key=lambda edition: (edition.moment, edition.release), reverse=True)
    folders = dict[str, list[Edition]]()
    for edition in ordered:
        folders.setdefault(edition.folder, []).append(edition)
    return [Publication(tuple(editions_of_folder)) for _, editions_of_folder in sorted(folders.items())]


@dataclass(frozen=True, eq=False)
class Site:
    """Site of publications.

    Attributes
    ----------
    title : str
    publications : sequence of Publication
    accounts : sequence of mapping
        Cost of the releases of each dataset: `name`, `sentences`, `notes`, and `releases` with `release`, `day`,
        `epsilon`, `delta`, `state`, and `address` and `title` of its page.
    folder : Path
    """

    title: str
    publications: Sequence[Publication]
    accounts: Sequence[Mapping[str, Any]]
    folder: Path

    def write(self) -> dict[str, Any]:
        """Write all files. Returns the numbers of pages, tables and releases.

        An older site in the folder is replaced. Raises JobError for a folder with other files.
        """
        check_place(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        releases = [self._listed(edition) for publication in self.publications for edition in publication.editions]
        text = json.dumps({"format": FORMAT, "title": self.title, "releases": releases}, indent=1, ensure_ascii=False)
        self._text(SITE, text + "\n")
        self._text("assets/site.css", shared_file("style.css") + shared_file("site.css", __package__))
        self._text("assets/site.js", shared_file("page.js") + shared_file("site.js", __package__))
        for publication in self.publications:
            self._publication(publication, publication.newest, publication.newest.folder)
            for edition in publication.editions:
                self._publication(publication, edition, edition.home)
        seeded = not all(edition.private for publication in self.publications for edition in publication.editions)
        self._page(PRIVACY, "privacy.html", "How it is protected", [], accounts=self.accounts, seeded=seeded)
        tables = sum(len(publication.holders("sheets")) for publication in self.publications)
        entries = list(self._entries())
        self._page(
            "index.html", "index.html", self.title, [], publications=self.publications, tables=tables, entries=entries,
            kinds=list(dict.fromkeys(entry["kind"] for entry in entries)),
            subjects=list(dict.fromkeys(entry["subject"] for entry in entries)),
        )  # fmt: skip
        return {"pages": len(list(self.folder.rglob("*.html"))), "tables": tables, "releases": len(releases)}

    @cached_property
    def _rows(self) -> Callable[..., str]:
        return compile_template(shared_file("rows.html", __package__))[0].render

    def _text(self, address: str, text: str) -> None:
        place = self.folder / address
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, text.encode())

    def _html(self, name: str, page: str, **values: Any) -> str:
        template, _ = compile_template(shared_file(name, __package__))
        return template.render(link=partial(relative, page), page=page, **values)

    def _page(self, page: str, name: str, title: str, trail: Sequence[tuple[str, str]], **values: Any) -> None:
        """Write a page from its template; `trail` has texts and addresses of the pages above it."""
        content = self._html(name, page, **{"title": title, **values})
        above = [(self.title, "index.html"), *trail] if page != "index.html" else []
        self._text(page, self._html("layout.html", page, title=title, trail=above, content=content, policy=POLICY))

    def _publication(self, publication: Publication, edition: Edition, base: str) -> None:
        """Write the pages below a folder: those of one edition, or at the permanent folder the newest of each page.

        `holders` has the edition of which each page is shown at the permanent address: the newest one that has it.
        """
        permanent = base == edition.folder
        owners = {kind: publication.holders(kind) if permanent else dict.fromkeys(getattr(edition, kind), edition)
                  for kind in ("sheets", "attributes")}  # fmt: skip
        for address, owner in owners["sheets"].items():
            self._table(publication, owner, base, address)
        for address, owner in owners["attributes"].items():
            self._attribute(publication, owner, base, owner.attributes[address])
        groups = list(dict.fromkeys(shown.group.title for shown in edition.sheets.values() if shown.group.title))
        self._page(
            f"{base}/index.html", "publication.html", edition.title, [], edition=edition, groups=groups,
            sheets=[(f"{base}/{address}.html", shown) for address, shown in edition.sheets.items()],
            attributes=[(f"{base}/{address}.html", shown) for address, shown in edition.attributes.items()],
            **self._around(publication, edition, base, "index"),
        )  # fmt: skip

    def _around(self, publication: Publication, edition: Edition, base: str, address: str) -> dict[str, str]:
        """Return the notice of an older edition and the list of all editions of a page.

        `target` is the permanent address of a page, to which the page of an older edition refers.
        """
        permanent, newest, page = base == edition.folder, publication.newest, f"{base}/{address}.html"
        kind = {"tables": "sheets", "attributes": "attributes"}.get(address.split("/")[-2] if "/" in address else "")
        having = publication.versions(kind, address) if kind else list(publication.editions)
        is_old = edition is not newest
        target = f"{edition.folder}/{address}.html" if not permanent and newest in having else None
        old = self._html("old.html", page, edition=edition, newer=newest if is_old else None, target=target)
        versions = [(version, f"{version.home}/{address}.html", version is edition) for version in having]
        return {
            "old": old,
            "versions": self._html("versions.html", page, versions=versions, permanent=permanent, newest=newest),
        }

    def _table(self, publication: Publication, edition: Edition, base: str, address: str) -> None:
        """Write the page of a table, its further rows as scripts that the page loads, and its files to download."""
        sheet, page = edition.sheets[address], f"{base}/{address}.html"
        folder, name = (base + "/" + address).rsplit("/tables/", 1)
        has_counts = bool(sheet.rows) and "count" in sheet.rows[0]
        flags = ["", *dict.fromkeys(row["flag"] for row in sheet.rows if row.get("flag"))]
        values = {"bars": bool(sheet.unit), "has_counts": has_counts, "has_flags": len(flags) > 1}
        # the first piece is in the page, the others are scripts
        pieces = [self._rows(rows=sheet.rows[at : at + EMBEDDED], **values)
                  for at in range(0, max(len(sheet.rows), 1), EMBEDDED)]  # fmt: skip
        for number, rows in enumerate(pieces[1:], start=1):
            self._text(
                f"{folder}/tables/{name}.rows-{number}.js", f"addRows({json.dumps(rows, ensure_ascii=False)});\n"
            )

        write_tables(self.folder / folder, sheet.group.domain, [replace(sheet.finished, name=name)], edition.release,
                     sheet.formats, sheet.group.notes[0], sheet.group.notes, edition.about)  # fmt: skip
        downloads = [(DOWNLOADS[kind][0], f"{folder}/{kind}/{name}.{DOWNLOADS[kind][1]}") for kind in sheet.formats]
        has_intervals = any(row.get("interval") for row in sheet.rows)
        self._page(
            page, "table.html", sheet.title, [(edition.title, f"{base}/index.html")], edition=edition, sheet=sheet,
            downloads=downloads, rows=pieces[0], parts_number=len(pieces) - 1, part_name=f"{name}.rows-", flags=flags,
            has_intervals=has_intervals,
            has_counts=has_counts, embedded=EMBEDDED, all_notes=[*sheet.own_notes, *sheet.group.notes],
            attributes=[(f"{base}/{attribute.address}.html", attribute) for attribute in edition.pages_of(sheet)],
            **self._around(publication, edition, base, address),
        )  # fmt: skip

    def _attribute(self, publication: Publication, edition: Edition, base: str, attribute: AttributePage) -> None:
        """Write the page of an attribute with links to the sheets of the edition that have it.

        `base` is the address of the folder of the edition in the site.
        """
        self._page(
            f"{base}/{attribute.address}.html", "attribute.html", attribute.title,
            [(edition.title, f"{base}/index.html")], one=attribute, edition=edition,
            sheets=[(f"{base}/{address}.html", sheet) for address, sheet in edition.sheets_with(attribute)],
            **self._around(publication, edition, base, attribute.address),
        )  # fmt: skip

    def _entries(self) -> Iterator[dict[str, str]]:
        """Yield the lines of the search over tables and attributes."""
        for publication in self.publications:
            folder = publication.newest.folder
            for kind, shown in (("sheets", "table"), ("attributes", "attribute")):
                for address, owner in publication.holders(kind).items():
                    entry = getattr(owner, kind)[address]  # a sheet, or the page of an attribute
                    if kind == "sheets":
                        more = entry.group.title
                    else:
                        more = " ".join(filter(None, (entry.group, entry.description)))
                    yield {"address": f"{folder}/{address}.html", "title": entry.title, "kind": shown, "more": more,
                           "subject": publication.newest.title}  # fmt: skip

    def _listed(self, edition: Edition) -> dict[str, Any]:
        """Return the entry of a release in the list of the site for machines."""
        tables = [{"address": f"{edition.home}/{address}.html", "title": sheet.title}
                  for address, sheet in edition.sheets.items()]  # fmt: skip
        return {"release": edition.release, "title": edition.title, "day": edition.day,
                "address": f"{edition.home}/index.html", "permanent": f"{edition.folder}/index.html",
                "tables": tables}  # fmt: skip


def check_place(folder: Path) -> None:
    """Raise JobError unless a folder is absent, empty or an older site."""
    if folder.is_symlink():
        raise JobError("--out", f"{folder} is a symbolic link", "a real folder", "name the folder that it points to")
    is_other = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if is_other and not (folder / SITE).is_file():
        raise JobError("--out", f"{folder} contains other files", "a new or empty folder, or an older site",
                       "choose another folder")  # fmt: skip
