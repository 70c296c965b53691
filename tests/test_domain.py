"""Domain files: accepted and refused content, and round trips."""

from __future__ import annotations

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings

import dpscale as dp
from dpscale.domain import Attribute
from dpscale.domain.rules import FunctionalDependency
from tests.messages import refused
from tests.strategies import domains

GOOD = {"kind": "categories", "values": ["F", "M"]}


def read_domain(**tables):
    return dp.Domain.from_dict({"attributes": tables})


@settings(max_examples=100, deadline=None)
@given(domains())
def test_domain_file_round_trip(tmp_path_factory, domain):
    path = tmp_path_factory.mktemp("domain") / "x.domain.toml"
    path.write_text(tomli_w.dumps(domain.to_dict()), encoding="utf-8")
    again = dp.Domain.read(path)
    assert again == domain
    assert hash(again) == hash(domain)
    assert again.digest == domain.digest
    for attribute in again.attributes:
        assert len(attribute.labels) == attribute.size == len(set(map(str, attribute.labels)))


def test_example_of_the_contract():
    domain = read_domain(
        age={"kind": "integer", "low": 0, "high": 84, "outside": "clip", "nulls": "reject"},
        sex={"kind": "categories", "values": ["F", "M"], "outside": "reject", "nulls": "category"},
        income={"kind": "bins", "edges": [0, 10000, 50000, 1e6], "outside": "clip"},
        code={"kind": "coded", "size": 42},
    )
    assert domain.shape(domain.names) == (85, 3, 3, 42)
    assert domain["sex"].labels == ["F", "M", None]
    assert domain["income"].labels == ["[0, 10000)", "[10000, 50000)", "[50000, 1e+06]"]
    assert domain.cells(("sex", "income")) == 9
    assert domain.ordered(["code", "age"]) == ("age", "code")


def test_labels_of_close_edges_are_distinct():
    labels = read_domain(x={"kind": "bins", "edges": [1000000, 1000001, 1000002]})["x"].labels
    assert len(set(labels)) == 2
    assert labels[0] == "[1e+06, 1000001.0)"


def test_domain_from_sizes_accepts_numpy_integers():
    assert dp.Domain({"a": np.int32(10), "b": 20}) == dp.Domain({"a": 10, "b": 20})


@pytest.mark.parametrize("size", [0, 1, -3, True, 2.0, "5", None, 1 << 33])
def test_invalid_size_is_refused(size):
    with refused(dp.DomainError):
        dp.Domain({"a": size})


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"kind": "integr"}, "did you mean 'integer'"),
        ({"kind": ["integer"]}, "x.kind"),
        ({}, "x.kind"),
        ("integer", "not a table"),
        ({"kind": "integer", "low": 0}, "x.high: missing"),
        ({"kind": "integer", "low": 5, "high": 4}, "at least low = 5"),
        ({"kind": "integer", "low": 0, "high": 4.0}, "an integer"),
        ({"kind": "integer", "low": 0, "high": True}, "an integer"),
        ({"kind": "integer", "low": 2**60, "high": 2**60 + 3}, "2^53"),
        ({"kind": "integer", "low": 0, "high": 9, "step": 2}, "unknown key 'step'"),
        ({**GOOD, "outsde": "clip"}, "did you mean 'outside'"),
        ({**GOOD, "outside": "clip"}, "reject, category or drop"),
        ({**GOOD, "nulls": "clip"}, "x.nulls"),
        ({**GOOD, "outside": ["reject"]}, "x.outside"),
        ({"kind": "categories", "values": []}, "x.values"),
        ({"kind": "categories", "values": [], "outside": "category", "nulls": "category"}, "x.values"),
        ({"kind": "categories", "values": "FM"}, "x.values"),
        ({"kind": "categories", "values": ["F", "F"]}, "twice"),
        ({"kind": "categories", "values": [1, 1.0]}, "twice"),
        ({"kind": "categories", "values": [1, True]}, "mixed"),
        ({"kind": "categories", "values": ["a", "(outside)"], "outside": "category"}, "label of values outside"),
        ({"kind": "categories", "values": [1, "1"]}, "mixed"),
        ({"kind": "categories", "values": [1.0, float("nan")]}, "not finite"),
        ({"kind": "categories", "values": [None, "a"]}, "x.values"),
        ({"kind": "categories", "values": ["a"]}, "at least 2 cells"),
        ({"kind": "bins", "edges": [0]}, "x.edges"),
        ({"kind": "bins", "edges": [0, 1]}, "at least 2 cells"),
        ({"kind": "bins", "edges": [0, 1, 1]}, "not increasing"),
        ({"kind": "bins", "edges": [0, 2**53, 2**53 + 1]}, "not increasing"),
        ({"kind": "bins", "edges": [0, 1, float("inf")]}, "finite"),
        ({"kind": "bins", "edges": [0, 1, 10**400]}, "finite"),
        ({"kind": "bins", "edges": [0, True, 2]}, "numbers"),
        ({"kind": "coded", "size": 0, "outside": "category", "nulls": "category"}, "x.size"),
        ({"kind": "coded", "size": 1 << 40}, "2^32"),
    ],
)
def test_invalid_attribute_table_is_refused_in_one_sentence(table, says):
    with pytest.raises(dp.DomainError) as caught:
        read_domain(x=table)
    assert says in str(caught.value)
    assert caught.value.field.startswith("attributes")
    assert "\n" not in str(caught.value)


def test_empty_domain_and_repeated_names_are_refused():
    for attributes in ({}, [], [Attribute("a", "coded", high=3)] * 2, {"": 3}):
        with pytest.raises(dp.DomainError):
            dp.Domain(attributes)
    with refused(dp.DomainError):
        dp.Domain.from_dict({"atributes": {}})
    with refused(dp.DomainError):
        dp.Domain.from_dict({"attributes": 3})


@pytest.mark.parametrize("content", [b"[attributes", b"\xff\xfe", None])
def test_unreadable_domain_file_is_refused(tmp_path, content):
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    with refused(dp.DomainError):
        dp.Domain.read(path)


def test_domain_file_may_start_with_byte_order_mark(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes('\ufeff[attributes.ort]\nkind = "categories"\nvalues = ["Köln", "Ulm"]\n'.encode())
    assert dp.Domain.read(path)["ort"].labels == ["Köln", "Ulm"]


def test_transitive_dependency_is_a_rule_of_the_domain():
    rules = ["if town in (0, 1) then region = 0", "if town = 2 then region = 1",
             "(region = 0 and country = 1) or (region = 1 and country = 0)"]  # fmt: skip
    domain = dp.Domain({"town": 3, "region": 2, "country": 2}, rules)
    assert FunctionalDependency("town", "country", (1, 1, 0)) in domain.rules
    assert len(domain.rules) == 3
    assert domain == dp.Domain({"town": 3, "region": 2, "country": 2}, rules)
    assert dp.Domain.from_dict(domain.to_dict()).rules == domain.rules
