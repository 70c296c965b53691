"""Patterns of texts: their elements and number of texts, compared with `re` on all short texts, and refusals."""

from __future__ import annotations

import re
from itertools import product

import pytest

import dpscale as dp
from dpscale.base.errors import DomainError
from dpscale.domain import Domain
from dpscale.domain.text_format import TextFormat
from tests.messages import refused

PATTERNS = (
    "[ab]{0,3}",
    "[a-c]{1,2}-[ab]",
    "a{0,4}",
    "[b-]{2}c{0,1}",
    "\\-[ab]{1,2}",
    "[a\\-b]",
    "a{2}[bc]",
    "[aab]{2}",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_number_of_texts_is_that_of_all_matches(pattern: str) -> None:
    texts = ("".join(letters) for length in range(5) for letters in product("abc-", repeat=length))
    assert TextFormat("id", pattern).texts == sum(re.fullmatch(pattern, text) is not None for text in texts)


def test_escapes_are_digits_and_ascii_words() -> None:
    digits, words = TextFormat("id", "\\d\\w").elements
    assert set(digits.letters) == {chr(one) for one in range(128) if re.fullmatch("\\d", chr(one))}
    assert set(words.letters) == {chr(one) for one in range(128) if re.fullmatch("\\w", chr(one))}


@pytest.mark.parametrize(
    "pattern",
    ["", "a*", "a+", "a?", ".", "(a)", "a|b", "^a", "a$", "[^a]", "[]", "[a", "[b-a]", "[\\d-z]", "\\s", "\\", "a{",
     "a{2,1}",
     "a{0}", "a{,2}", "a{2}{3}", "]", "[[:alpha:]]", "a{1001}", "\n", "[a-z]{1,2}[a-f]", "a{0,1}b{0,1}a",
     "\\d{1,3}\\d"],
)  # fmt: skip
def test_other_patterns_are_refused(pattern: str) -> None:
    with refused(DomainError):
        Domain({"a": 3}, formats={"id": pattern})


@pytest.mark.parametrize("formats", [["id"], {"id": 3}, {"id": {"unique": True}}, {"id": {"pattern": "a", "unique": 1}},
                                     {"id": {"pattern": "a", "length": 1}}, {"a": "b"}, {"x": "b"},
                                     {"n": "b"}])  # fmt: skip
def test_faulty_formats_are_refused(formats: object) -> None:
    content = {"attributes": {"a": {"kind": "coded", "size": 3}, "b": {"kind": "coded", "size": 3, "from": "x"}},
               "numbers": {"n": {"low": 0, "high": 3}}, "formats": formats}  # fmt: skip
    with refused(DomainError):
        Domain.from_dict(content)


def test_formats_are_kept_and_change_no_digest() -> None:
    plain = dp.Domain(a=3, b=2)
    domain = dp.Domain({"a": 3, "b": 2}, formats={"id": "\\d{4}", "note": {"pattern": "[a-z ]{9}", "unique": False}})
    assert Domain.from_dict(domain.to_dict()) == domain != plain
    assert domain.digest == plain.digest
    assert domain.with_rules(["a >= b"]).formats == domain.formats
