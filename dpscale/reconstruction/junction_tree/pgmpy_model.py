"""A fitted model as one of pgmpy's, to be queried, drawn and saved with it (pip install 'dpscale[graphical]').

A Markov network with one factor a clique: its probabilities given what it shares with the clique above, so that the
product of all is the joint distribution. Its graph is triangulated: pgmpy's own junction tree of it has our cliques.
pgmpy is imported here and nowhere else, when it is asked for: it brings scikit-learn, statsmodels and more. Fits do not
take its triangulation, whose ties fall as Python's sets are walked, nor its messages, which are not in logarithms.
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
    """A `pgmpy.models.DiscreteMarkovNetwork` over the cells of all attributes; PlanError where pgmpy is missing.

    `law`: the probabilities of a clique's cells.
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
