"""Editions: the releases of a site with their pages, in the order of their time.

Releases with the same title, or with the same dataset if they have none, are editions of one publication. Its permanent
addresses have the newest edition; each edition also stays at an address of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpscale.answers.publish import ABOUT
from dpscale.answers.site.sheets import Sheet, SheetGroup, address_of_name, address_of_title
from dpscale.answers.tables import texts
from dpscale.answers.words import title_of, words_of

LONGEST_ID = 16  # letters of a release's id in an address
MOST_CELLS = 2000  # cells of an attribute that its page lists


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
        return [(address, one) for address, one in self.sheets.items() if _concerns(one, page)]

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
    for one in sheets:
        names |= dict.fromkeys(one.finished.attributes)
        if one.finished.number is not None:
            numbers[one.finished.number.number.name] = one.finished.number.number
    found = dict[str, AttributePage]()
    for name in (*(own for own in domain.names if own in names), *numbers):
        axis = domain[name]
        place = replace(group, folder="", title="") if group.period else group  # all kinds of answers share them
        address, title = place.place("attributes", address_of_name(name)), place.title
        words = (title_of(domain, name), axis.words.description, axis.words.unit)
        # a number has a range in place of cells
        if name in numbers:
            low, high = numbers[name].ends
            kind = f"number from {low:g} to {high:g}, in steps of {float(numbers[name].unit):g}"
            found[address] = AttributePage(address, title, name, *words, kind)
        else:
            cells = list(zip(texts(axis), words_of(axis), strict=True))
            found[address] = AttributePage(address, title, name, *words, axis.kind, cells[:MOST_CELLS], len(cells))
    return found


@dataclass(frozen=True)
class Publication:
    """Editions with one title, the newest first."""

    editions: tuple[Edition, ...]

    @property
    def newest(self) -> Edition:
        return self.editions[0]

    def holders(self, kind: str) -> dict[str, Edition]:
        """Return the newest edition that has each address of a kind, "sheets" or "attributes"."""
        found = dict[str, Edition]()
        for edition in self.editions:
            for address in getattr(edition, kind):
                found.setdefault(address, edition)
        return found

    def versions(self, kind: str, address: str) -> list[Edition]:
        """Return the editions that have an address."""
        return [one for one in self.editions if address in getattr(one, kind)]


def publications(editions: Iterable[Edition]) -> list[Publication]:
    """Return the publications of some releases by title; a release that is given twice is counted once."""
    known = {one.release: one for one in editions}
    ordered = sorted(known.values(), key=lambda one: (one.moment, one.release), reverse=True)
    folders = dict[str, list[Edition]]()
    for one in ordered:
        folders.setdefault(one.folder, []).append(one)
    return [Publication(tuple(own)) for _, own in sorted(folders.items())]
