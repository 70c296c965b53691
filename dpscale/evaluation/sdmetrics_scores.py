"""Scores of SDMetrics: its quality and diagnostic reports of rows against data, with metadata from the domain.

SDMetrics compares two pandas frames. They are made of the samples of cells on which models are trained (at most
`models.MOST` rows of each table), so the rules of the domain for outside values and nulls hold, and no record is read
again. A number is the middle of its bin, a period its first day, any other cell its label as a text. The scores are
exact and as private as the data. SDMetrics is imported only here: pip install 'dpscale[sdmetrics]'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import Integers32, NDArray
from dpscale.domain.attribute import Attribute, first_day
from dpscale.evaluation.inputs import is_text
from dpscale.evaluation.models import without_warnings
from dpscale.job.sdv import sdtype_of

if TYPE_CHECKING:
    from pandas import DataFrame

LOWEST = 10  # pairs that the page shows
TABLE = "rows"  # name for SDMetrics, whose reports are of several tables
SHAPES, TRENDS, VALIDITY, STRUCTURE = "Column Shapes", "Column Pair Trends", "Data Validity", "Data Structure"


def check_sdmetrics() -> None:
    """Raise JobError if SDMetrics is missing."""
    try:
        from sdmetrics.reports import DiagnosticReport, QualityReport  # noqa: F401
    except ImportError:
        raise JobError(
            "SDMetrics", "not installed", "version 0.29 or later", "pip install 'dpscale[sdmetrics]'"
        ) from None


def table_metadata(attributes: Sequence[Attribute]) -> dict[str, Any]:
    """Return the metadata of a table for SDMetrics: each attribute is a number, a date, a boolean or a category."""
    return {
        "tables": {TABLE: {"columns": {attribute.name: sdtype_of(attribute) for attribute in attributes}}},
        "relationships": [],
    }


def frame_of(attributes: Sequence[Attribute], codes: Integers32) -> DataFrame:
    """Return compared cells, shape (rows, attributes), as a pandas frame of values."""
    from pandas import DataFrame

    return DataFrame(
        {attribute.name: _cell_values(attribute)[codes[:, column]] for column, attribute in enumerate(attributes)}
    )


def _cell_values(attribute: Attribute) -> NDArray[Any]:
    """Return the value of each compared cell; cells beyond the listed ones are missing, unless they have a label.

    The last value, nan, NaT or None, is that of the cell with outside values and nulls.
    """
    kind = sdtype_of(attribute)["sdtype"]
    if kind == "numerical":
        edges = np.asarray(attribute.edges)
        steps = attribute.low + attribute.step * np.arange(attribute.listed, dtype=float)
        return np.append((edges[:-1] + edges[1:]) / 2 if len(edges) else steps, np.nan)

    if kind == "datetime":
        periods = range(attribute.low, attribute.low + attribute.listed)
        days = [first_day(attribute.by, number).isoformat() for number in periods]
        return np.array([*days, "NaT"], dtype="datetime64[s]")

    labels = attribute.labels if is_text(attribute) else [*attribute.labels[: attribute.listed], None]
    return np.array([label if label is None or kind == "boolean" else str(label) for label in labels], dtype=object)


def sdmetrics_scores(attributes: Sequence[Attribute], data: Integers32, rows: Integers32) -> dict[str, Any]:
    """Return the scores of both reports, those of every attribute, and the pairs with the lowest ones.

    Parameters
    ----------
    attributes : sequence of Attribute
    data, rows : ndarray, shape (rows, attributes)
        Samples of both tables, in compared cells.

    Returns
    -------
    dict
        `quality` and `diagnostic` with the `score` of the report and that of each of its `properties`, `shapes` and
        `validity` by attribute, `pairs` with the lowest scores, and the number of pairs `without_score`: SDMetrics
        gives none if both attributes are nearly independent in the data, or one of them is constant. A missing score
        is nan.
    """
    from sdmetrics.reports import DiagnosticReport, QualityReport

    tables = {TABLE: frame_of(attributes, data)}, {TABLE: frame_of(attributes, rows)}, table_metadata(attributes)
    quality, diagnostic = QualityReport(), DiagnosticReport()
    for report in (quality, diagnostic):
        without_warnings(partial(report.generate, *tables, verbose=False))
    pairs = [{"attributes": [one["Column 1"], one["Column 2"]], **_score(one)} for one in _details(quality, TRENDS)]
    scored = sorted((pair for pair in pairs if pair["score"] == pair["score"]), key=lambda one: float(one["score"]))

    return {
        "version": version("sdmetrics"),
        "quality": _summary(quality, SHAPES, TRENDS),
        "diagnostic": _summary(diagnostic, VALIDITY, STRUCTURE),
        "shapes": [{"attribute": one["Column"], **_score(one)} for one in _details(quality, SHAPES)],
        "validity": [{"attribute": one["Column"], **_score(one)} for one in _details(diagnostic, VALIDITY)],
        "pairs": scored[:LOWEST],
        "without_score": len(pairs) - len(scored),
    }


def _summary(report: Any, *properties: str) -> dict[str, Any]:
    scores = {str(one["Property"]): float(one["Score"]) for one in report.get_properties().to_dict("records")}
    return {"score": float(report.get_score()), "properties": {name: scores[name] for name in properties}}


def _details(report: Any, property_name: str) -> list[dict[str, Any]]:
    """Return the single scores of a property."""
    return list(report.get_details(property_name).to_dict("records"))


def _score(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {"metric": str(detail["Metric"]), "score": float(detail["Score"])}
