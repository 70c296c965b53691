"""Texts of formats: brute force over whole patterns, division into blocks, and equal shares of letters."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dpscale.base.arrow import pa
from dpscale.domain.text_format import TextFormat
from dpscale.synthesis import text_values
from dpscale.synthesis.text_values import distinct_texts, text_column

SMALL = (
    "[A-C]{1,3}-\\d",
    "[ab]{0,3}",
    "\\d{3}",
    "x[é☃😀]{1,2}\\.",
    "a{0,5}",
    "[01]",
    "a",
    "[a-c]{0,2}\\d{1,2}[xy]{0,1}",
)
LARGE = ("[A-Z]{2}[0-9]{6}", "\\w{12}", "[a-z ]{80}", "[a-z]{1,30}", "[a-z]{5,90}!\\d{1,12}", "a{9}[ab]{70}",
         "z{0,60}-\\w{40}")  # fmt: skip


@pytest.mark.parametrize("pattern", SMALL)
def test_rows_as_many_as_texts_have_every_text_once(pattern: str) -> None:
    form = TextFormat("id", pattern)
    found = text_column(form, np.arange(form.texts), "release").to_pylist()
    assert len(set(found)) == form.texts == distinct_texts(form)
    assert all(re.fullmatch(pattern, text) for text in found)


@pytest.mark.parametrize("pattern", LARGE)
def test_texts_of_large_patterns_match_and_differ(pattern: str) -> None:
    form = TextFormat("id", pattern)
    found = text_column(form, np.arange(20_000), "release").to_pylist()
    assert len(set(found)) == 20_000 < distinct_texts(form) <= form.texts
    assert all(re.fullmatch(pattern, text) for text in found)


@pytest.mark.parametrize("unique", [True, False])
def test_blocks_and_order_do_not_change_texts(unique: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    form, rng = TextFormat("id", "[a-zß]{3,9}-\\d{2}", unique), np.random.default_rng(0)
    rows = np.arange(3000)
    whole = text_column(form, rows, "release")
    monkeypatch.setattr(text_values, "BLOCK_LETTERS", 100)
    parts = [text_column(form, part, "release") for part in np.split(rows, [7, 7, 1200])]
    assert pa.concat_arrays(parts).equals(whole)
    order = rng.permutation(3000)
    assert text_column(form, order, "release").to_pylist() == [whole[int(at)].as_py() for at in order]
    assert not text_column(form, rows, "another").equals(whole)


def test_absent_rows_are_null() -> None:
    form = TextFormat("id", "\\d{3}")
    found = text_column(form, np.array([-1, 4, -1, 0]), "release").to_pylist()
    assert found[0] is found[2] is None
    assert found[1::2] == text_column(form, np.array([4, 0]), "release").to_pylist()


@pytest.mark.parametrize("pattern", ["[a-d]{40}", "[a-d]{8}"])
@pytest.mark.parametrize("unique", [True, False])
def test_letters_have_equal_shares(pattern: str, unique: bool) -> None:
    """The standard error of a share of 16,384 rows is .0034; neighbouring rows are independent."""
    form = TextFormat("id", pattern, unique)
    texts = text_column(form, np.arange(1 << 14), "release").to_pylist()
    letters = np.array([list(text) for text in texts])
    for at in range(letters.shape[1]):
        shares = np.array([(letters[:, at] == one).mean() for one in "abcd"])
        assert np.abs(shares - 0.25).max() < 6 * 0.0034
    same = letters[:-1] == letters[1:]
    assert np.abs(same.mean(axis=0) - 0.25).max() < 6 * 0.0034


def test_texts_repeat_where_they_need_not_be_unique() -> None:
    found = text_column(TextFormat("id", "\\d", False), np.arange(1000), "release").to_pylist()
    assert set(found) == set("0123456789")
