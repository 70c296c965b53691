"""Search for the nodes of a tree of codes on an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpscale.base.arrow import pa
from dpscale.discovery.nodes import (
    LeafCounts,
    LeafRequest,
    NodePlan,
    count_leaves,
    find_nodes,
    found_nodes,
    plan_nodes,
    read_tree,
)
from dpscale.domain.attribute import Attribute
from dpscale.runs.searches import Found, SearchReader, SearchSummary, SearchTerms


def plan(attribute: Attribute, terms: SearchTerms) -> NodePlan:
    """Return the measurement of a tree of codes."""
    return plan_nodes(attribute, read_tree(attribute), terms.share, terms.rows_per_unit)


def search(plan: NodePlan, reader: SearchReader) -> Found:
    """Return the attribute with the nodes that were found."""
    codes = pa.array(plan.tree.codes, pa.large_string())
    request = LeafRequest(reader.rows, plan.attribute, codes)
    counts = reader.total(count_leaves, reader.engine.broadcast(request, "codes"), "count-codes")
    leaves = LeafCounts(np.append(0, np.cumsum(counts)))
    return found_nodes(plan, find_nodes(plan, leaves.of, reader.secret, reader.head))


def summarize(attribute: Attribute, released: Mapping[str, Any]) -> SearchSummary:
    """Return the nodes of a tree of codes that a search found, with their noisy counts."""
    cells = tuple(
        (f"{node['code']} (level {node['depth']})", node["count"], released["error"]) for node in released["found"]
    )
    facts = ("A cell has the codes below a node that are not below another found node.",)
    return SearchSummary("nodes of the tree of codes", facts, cells)
