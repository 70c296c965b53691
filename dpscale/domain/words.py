"""Words of the reader: titles, descriptions, units and labels of values.

They are displayed only. They are outside the digest of a domain, the workload and every draw, and files for machines
keep the values of the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import DomainError

WORDS = ("title", "description", "unit", "labels")  # keys of a table of the domain file
NULLS = "(null)"


@dataclass(frozen=True)
class Words:
    """Words for an attribute or a number.

    Attributes
    ----------
    title, description, unit : str
        Empty without one.
    labels : mapping of str to str
        Texts that are shown in place of values, by `key_of` of the value.
    """

    title: str = ""
    description: str = ""
    unit: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def among(self, labels: Sequence[Any]) -> Words:
        """Return the words without labels of values that no cell has."""
        known = {key_of(label) for label in labels}
        return replace(self, labels={value: text for value, text in self.labels.items() if value in known})

    def describe(self) -> dict[str, Any]:
        """Return the keys of a table of the domain file."""
        return {name: value for name, value in vars(self).items() if value}


def key_of(label: object) -> str:
    """Return the key of a cell's label in `labels`: its text, (null) for nulls, and true or false."""
    return NULLS if label is None else str(label).lower() if isinstance(label, bool) else str(label)


def read_words(where: str, table: Mapping[str, Any]) -> Words:
    """Return the words of a table of the domain file.

    Raises
    ------
    DomainError
        If one is not a text, or two values have the same label.
    """
    found: dict[str, Any] = {key: table[key] for key in WORDS[:3] if key in table}
    for key, text in found.items():
        _check_text(f"{where}.{key}", text)
    labels = table.get("labels", {})
    if not isinstance(labels, Mapping):
        raise DomainError(
            f"{where}.labels", safe_repr(labels), 'texts by value, as {0 = "alive", 1 = "dead"}', "fix it"
        )

    shown = {key_of(value): text for value, text in labels.items()}
    for value, text in shown.items():
        _check_text(f"{where}.labels.{value}", text)
        if list(shown.values()).count(text) > 1:
            raise DomainError(f"{where}.labels", f"{text!r} twice", "distinct texts", "change one of them")
    return Words(**found, labels=shown)


def check_labelled(where: str, labelled: Mapping[str, str], labels: Sequence[Any]) -> None:
    """Raise DomainError if a label is given for a value that no cell has."""
    known = {key_of(label) for label in labels}
    if unknown := [value for value in labelled if value not in known]:
        raise DomainError(f"{where}.labels", safe_repr(unknown[0]), "values of its cells", nearest(unknown[0], known))


def _check_text(where: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise DomainError(where, safe_repr(text), "a text of one line", "write one, or leave it out")
