"""Functions with a privacy claim state what is protected, its cost and neighbours, and where it is tested."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIELDS = ["Protected", "Cost", "Neighbours", "Proof"]
CLAIMS = (
    "dpscale.contributions.units:bounded_rows",
    "dpscale.discovery.value_counts:search_draw",
    "dpscale.discovery.value_counts:threshold_for",
    "dpscale.job.neighbours:neighbour_relation",
    "dpscale.ledger.book:Ledger.charge",
    "dpscale.ledger.book:Ledger.decide",
    "dpscale.measurement.journal:Journal.decide",
    "dpscale.measurement.journal:StoredDraws.draw",
    "dpscale.measurement.measurement:measure_block",
    "dpscale.plans.time_plan:TimePlan.total",
    "dpscale.privacy.accounting:Cost.for_group",
    "dpscale.privacy.accounting:Cost.total",
    "dpscale.privacy.draws:gaussian_draw",
    "dpscale.privacy.draws:laplace_draw",
    "dpscale.privacy.noise:discrete_gaussian",
    "dpscale.privacy.selection:draw_index",
    "dpscale.privacy.selection:scale_for",
    "dpscale.privacy.streams:stream_key",
    "dpscale.runs.charge:charge",
    "dpscale.runs.stages.units:terms",
)


def guarantee(text: str) -> dict[str, str]:
    """Return the fields of the section *Guarantee* of a docstring."""
    _, _, section = inspect.cleandoc(text).partition("\nGuarantee\n---------\n")
    found = re.split(rf"(?:^|\n)({'|'.join(FIELDS)}): ", section)
    return dict(zip(found[1::2], found[2::2], strict=True))


def faults(text: str) -> list[str]:
    """Return what is missing in the section *Guarantee* of a docstring."""
    fields = guarantee(text)
    document, _, test = " ".join(fields.get("Proof", "").removesuffix(".").split()).partition("; ")
    file, _, heading = document.partition(", ")
    missing = [name for name in FIELDS if not fields.get(name)]
    if not (ROOT / test).is_file():
        missing.append(f"the test {test}")
    if not (ROOT / file).is_file() or f"\n## {heading}\n" not in (ROOT / file).read_text():
        missing.append(f"the section {document}")
    return missing


@pytest.mark.parametrize("place", CLAIMS)
def test_claim_has_its_four_facts(place):
    module, _, name = place.partition(":")
    claim = import_module(module)
    for attribute in name.split("."):
        claim = getattr(claim, attribute)
    assert faults(inspect.getdoc(claim)) == []


def test_every_section_is_listed():
    sources = "".join(path.read_text() for path in (ROOT / "dpscale").rglob("*.py"))
    assert sources.count("Guarantee\n") == len(CLAIMS)


@pytest.mark.parametrize(("change", "fault"), [
    (("Cost: none.\n", ""), "Cost"),
    (("tests/privacy", "tests/nowhere"), "the test tests/nowhere/test_noise.py"),
    (("Additive δ", "Additive"), "the section docs/privacy.md, Additive"),
])  # fmt: skip
def test_planted_gap_is_detected(change, fault):
    text = ("Draw.\n\nGuarantee\n---------\nProtected: values.\nCost: none.\nNeighbours: rows.\n"
            "Proof: docs/privacy.md, Additive δ;\n    tests/privacy/test_noise.py.")  # fmt: skip
    assert faults(text) == []
    assert faults(text.replace(*change)) == [fault]
