"""Search for the nodes of a public tree of codes (kind "nodes"): level by level, below the nodes that are found.

Every level has the same share of the squared mu. A record lies in at most one node of each level, so all levels cost
their sum for every outcome; a unit of k rows costs k² times as much. The children of a node are measured if the noisy
count of the node is at least FOUND standard deviations. There is no additive delta, because the nodes are public. A
found node is a cell with the codes below it that are in no found node further down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpscale.base.numerics import Integers
from dpscale.discovery.code_tree import CodeNode, CodeTree
from dpscale.discovery.threshold import search_draw
from dpscale.discovery.values import NONE_FOUND
from dpscale.domain.attribute import Attribute
from dpscale.domain.search import NodeSearch
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw
from dpscale.privacy.secret import SecretFile
from dpscale.privacy.streams import open_stream

FOUND = 4.0


@dataclass(frozen=True)
class NodePlan:
    """Measurement of a tree of codes.

    Attributes
    ----------
    attribute : Attribute
    tree : CodeTree
    draw : GaussianDraw
        Noise of the counts of one level.
    """

    attribute: Attribute
    tree: CodeTree
    draw: GaussianDraw

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=self.draw.cost * self.tree.depth)

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""
        search = self.attribute.search
        assert isinstance(search, NodeSearch)
        return {"search": "nodes", "version": 1, "attribute": self.attribute.name, "column": self.attribute.column,
                "tree": search.digest, "levels": self.tree.depth, "multiplier": str(self.draw.multiplier),
                **self.draw.noise_spec}  # fmt: skip


def plan_nodes(attribute: Attribute, tree: CodeTree, share: Fraction, rows_per_unit: int) -> NodePlan:
    """Return the measurement of a search for nodes, with equal shares for all levels."""
    return NodePlan(attribute, tree, search_draw(share / tree.depth, rows_per_unit, f"the codes of {attribute.name}"))


def find_nodes(
    plan: NodePlan, count: Callable[[Sequence[CodeNode]], Integers], secret: SecretFile, head: Mapping[str, Any]
) -> dict[CodeNode, float]:
    """Return the nodes that are found, from the top down, and their noisy counts."""
    found: dict[CodeNode, float] = {}
    draw, nodes, key = plan.draw, plan.tree.children(0, len(plan.tree.paths), 1), secret.read()
    least = FOUND * draw.lattice_variance**0.5
    for depth in range(1, plan.tree.depth + 1):
        if not nodes:
            break
        stream = open_stream(
            key, "noise", {**head, **plan.record, "depth": depth, "nodes": [node.code for node in nodes]}
        )
        values = (draw.multiplier * count(nodes) + draw.words(stream, len(nodes))) / draw.multiplier
        new = {node: float(value) for node, value in zip(nodes, values, strict=True) if value >= least}
        found |= new
        nodes = [child for one in new for child in plan.tree.children(one.start, one.end, depth + 1)]
    return found


def found_nodes(plan: NodePlan, found: Mapping[CodeNode, float]) -> tuple[Attribute, dict[str, Any]]:
    """Return the attribute whose cells are the nodes that were found, and the released record."""
    owner: list[CodeNode | None] = [None] * len(plan.tree.paths)
    for node in sorted(found, key=lambda one: one.depth):
        owner[node.start : node.end] = [node] * (node.end - node.start)
    codes: dict[str, list[str]] = {}
    for code, above in zip(plan.tree.codes, owner, strict=True):
        if above is not None:
            codes.setdefault(above.code, []).append(code)
    codes = codes or {NONE_FOUND: [NONE_FOUND]}
    closed = replace(plan.attribute, values=tuple(codes), groups=tuple(map(tuple, codes.values())), search=None)
    measured = [{"code": one.code, "depth": one.depth, "count": count} for one, count in found.items()]
    return closed, {"found": measured, "error": plan.draw.lattice_variance**0.5}
