"""Export of a fitted model to pgmpy, for queries, sampling and files (pip install 'dpscale[graphical]').

The result is a Markov network with one factor per clique, the clique's probabilities given its separator, so the
product of all factors is the joint distribution. Its graph is triangulated, so pgmpy's own junction tree has the same
cliques. pgmpy is imported only here and only when needed, because it imports scikit-learn, statsmodels and more. Fits
use neither its triangulation, whose ties depend on the iteration order of sets, nor its messages, which are not in
logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.base.errors import PlanError
from dpscale.reconstruction.junction_tree.tree import JunctionTree, others

MOST_CELLS = 1 << 26


def to_pgmpy(tree: JunctionTree, sizes: Mapping[str, int], law: Callable[[AttributeSet], Floats]) -> Any:
    """Return a `pgmpy.models.DiscreteMarkovNetwork` over the cells of all attributes.

    Parameters
    ----------
    tree : JunctionTree
    sizes : mapping of str to int
        Number of cells of each attribute.
    law : callable
        Returns the probabilities of a clique's cells.

    Raises
    ------
    PlanError
        If pgmpy is missing, or a clique has too many cells.
    """
    try:
        from pgmpy.factors.discrete import DiscreteFactor
        from pgmpy.models import DiscreteMarkovNetwork
    except ImportError:
        raise PlanError("graphical", "pgmpy is not installed", "pgmpy 1.0 or later",
                        "pip install 'dpscale[graphical]'") from None  # fmt: skip
    network = DiscreteMarkovNetwork()
    network.add_nodes_from(list(sizes))
    for index, clique in enumerate(tree.cliques):
        cells = int(np.prod([float(sizes[name]) for name in clique]))
        if cells > MOST_CELLS:
            raise PlanError("graphical", f"{cells:,} cells of {', '.join(clique)}", f"at most {MOST_CELLS:,} a clique",
                            "query the model itself: it has them over groups of cells")  # fmt: skip
        table = law(clique)
        below = table.sum(axis=others(clique, tree.separators[index]), keepdims=True)
        values = np.divide(table, below, out=np.zeros_like(table), where=below > 0)
        network.add_edges_from(combinations(clique, 2))
        network.add_factors(DiscreteFactor(list(clique), [sizes[name] for name in clique], values))
    return network
