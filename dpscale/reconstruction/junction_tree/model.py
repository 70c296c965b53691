"""Graphical model: log-potentials over measured sets, and the marginals that they define.

p(x) ∝ exp(Σ_S θ_S(x_S) + Σ_i θ_i(x_i)). The tables θ_S are over groups of cells and the θ_i over cells, so the junction
tree is over groups: the share of a cell in its group depends on θ_i alone, exactly, and not on other attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import combinations, product
from typing import Any, Literal

import numpy as np

from dpscale.base.display import nearest
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats, NDArray
from dpscale.reconstruction.junction_tree.tree import (
    JunctionTree,
    assign_factors,
    calibrate_cliques,
    junction_tree,
    others,
    over_tree,
)
from dpscale.workload.residual import Groups, coarsened, expanded

MOST_PGMPY_CELLS = 1 << 26  # cells of a clique, or of all cliques of a Bayesian network: 512 MiB of floats
MOST_BIF_CELLS = 1 << 22  # probabilities in a text file, about 20 bytes each
Labels = Mapping[str, Sequence[Any]]
IMPOSSIBLE = -1e4  # log-potential of impossible cells; finite, so that differences are defined


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Probabilities of a calibrated junction tree.

    Attributes
    ----------
    cliques : tuple of ndarray
        Probabilities of the groups of every clique.
    within : mapping of str to ndarray
        Probabilities of every attribute's cells given their group.
    log_total : float
        log Z.
    """

    cliques: tuple[Floats, ...]
    within: Mapping[str, Floats]
    log_total: float


@dataclass(frozen=True, eq=False)
class Conditional:
    """Probabilities of an attribute given its parents.

    Attributes
    ----------
    name : str
    parents : AttributeSet
    values : ndarray
        Shape (cells of the attribute, cells of each parent…); sums to 1 over the first axis. Uniform where the parents
        have probability 0.
    """

    name: str
    parents: AttributeSet
    values: Floats

    def bif_lines(self, names: Mapping[str, str], states: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the block of this table in the Bayesian Interchange Format: a row for each combination of parents.

        The first axis of `values` is the attribute, the others its parents; `names` and `states` are the texts of
        attributes and values.
        """
        given = f" | {', '.join(names[parent] for parent in self.parents)}" if self.parents else ""
        rows = np.moveaxis(self.values, 0, -1).reshape(-1, len(self.values))
        keys = [f"({', '.join(key)})" for key in product(*(states[parent] for parent in self.parents))]
        heads = keys if self.parents else ["table"]
        lines = [f"  {head} {', '.join(map(repr, row))};" for head, row in zip(heads, rows.tolist(), strict=True)]
        return [f"probability ( {names[self.name]}{given} ) {{", *lines, "}"]


@dataclass(frozen=True, eq=False)
class GraphicalModel:
    """Graphical model.

    Attributes
    ----------
    groups : mapping of str to Groups
    factors : mapping of AttributeSet to ndarray
        θ_S over groups, for sets of two or more attributes.
    cells : mapping of str to ndarray
        θ_i over cells; the keys are the attributes in the domain's order.
    total : float
        Approximate number of records.
    gap : float
        Upper bound of L of the fit minus its minimum (`fit`).
    """

    groups: Mapping[str, Groups]
    factors: Mapping[AttributeSet, Floats]
    cells: Mapping[str, Floats]
    total: float
    gap: float = math.inf

    @cached_property
    def tree(self) -> JunctionTree:
        return junction_tree({name: group.count for name, group in self.groups.items()}, self.factors)

    @cached_property
    def clique_numbers(self) -> dict[AttributeSet, int]:
        """The clique of every factor and of every attribute's cells."""
        return {names: self.tree.smallest_clique(names) for names in [*self.factors, *((name,) for name in self.cells)]}

    @cached_property
    def calibrated(self) -> Calibrated:
        return calibrate(self.tree, self.clique_numbers, self.groups, self.factors, self.cells)

    def coarse_marginal(self, names: Sequence[str]) -> Floats:
        """Return estimated counts over groups, one axis each in the domain's order.

        A set inside a clique is a sum of the clique's table; another one is combined over the tree.
        """
        ordered = self._ordered(names)
        clique = self.tree.smallest_clique(ordered)
        if clique >= 0:
            table = self.calibrated.cliques[clique].sum(axis=others(self.tree.cliques[clique], ordered))
        else:
            table = over_tree(self.tree, self.calibrated.cliques, ordered)
        return np.asarray(self.total * table)

    def marginal(self, names: Sequence[str]) -> Floats:
        """Return estimated counts over cells, one axis per attribute in the given order.

        They are non-negative with sum `total`. `within` has the shares of the cells of a group, so counts of groups
        become counts of cells.
        """
        ordered = self._ordered(names)
        table = expanded(self.coarse_marginal(ordered), [self.groups[name] for name in ordered])
        for axis, name in enumerate(ordered):
            within = self.calibrated.within[name]
            table = table * within.reshape([-1 if i == axis else 1 for i in range(len(ordered))])
        return table.transpose([ordered.index(name) for name in names])

    def given(self, **cells: int | Sequence[int]) -> GraphicalModel:
        """Return the model of the records with a cell, or one of several; its `total` is approximately their number.

        Other cells of the attribute have the log-potential IMPOSSIBLE. Z is the sum over all cells, so the ratio of the
        new to the old Z is the share of the records.
        """
        known = dict(self.cells)
        for name, own in cells.items():
            self._ordered([name])
            for cell in own if isinstance(own, Sequence) else [own]:
                if not 0 <= cell < len(known[name]):
                    last = len(known[name]) - 1
                    raise JobError("given", f"{name} = {cell}", f"a cell from 0 to {last}", "correct it")
            known[name] = np.where(np.isin(np.arange(len(known[name])), own), known[name], IMPOSSIBLE)

        conditioned = replace(self, cells=known)
        vars(conditioned)["tree"] = self.tree
        share = math.exp(min(conditioned.calibrated.log_total - self.calibrated.log_total, 0.0))
        return replace(conditioned, total=self.total * share)

    @property
    def entropy(self) -> float:
        """Entropy of one record, in nats."""
        expected = sum(float((table * self.coarse_marginal(names)).sum()) for names, table in self.factors.items())
        expected += sum(float((table * self.marginal([name])).sum()) for name, table in self.cells.items())
        return self.calibrated.log_total - expected / self.total

    def log_likelihood(self, codes: Mapping[str, NDArray[np.int64]]) -> Floats:
        """Return log p of each record.

        Parameters
        ----------
        codes : mapping of str to ndarray of int64
            Cells of every attribute of the model, shape (records,).
        """
        groups = {name: self.groups[name].labels[codes[name]] for name in self.cells}
        found = np.full(len(next(iter(groups.values()))), -self.calibrated.log_total)
        for names, table in self.factors.items():
            found += table[tuple(groups[name] for name in names)]
        for name, table in self.cells.items():
            found += table[codes[name]]
        return found

    @property
    def sizes(self) -> dict[str, int]:
        """Number of cells of each attribute."""
        return {name: len(table) for name, table in self.cells.items()}

    def to_pgmpy(self, kind: Literal["bayesian", "markov"] = "markov", labels: Labels | None = None) -> Any:
        """Return the model as a network of pgmpy over cells; state names are labels, or cell numbers without them.

        A Bayesian network has the conditionals of the tree; a Markov network has the
        probabilities of each clique given its separator.
        """
        if kind not in ("bayesian", "markov"):
            raise JobError("kind", f"{kind!r}", "bayesian or markov", "leave it out")
        states = {name: list((labels or {}).get(name, range(size))) for name, size in self.sizes.items()}
        if kind == "bayesian":
            return _bayesian_network(self.conditionals(MOST_PGMPY_CELLS), states)
        return to_pgmpy(self.tree, self.sizes, lambda clique: self.marginal(clique) / self.total, states)

    def conditionals(self, most_cells: int) -> list[Conditional]:
        """Return the model as a Bayesian network: every attribute given attributes before it.

        Edges are directed along the junction tree: the attributes of a clique that are not in its separator follow each
        other, given the separator. The product of all tables is the joint distribution. Attributes are in the order of
        the cliques, after their parents.

        Raises
        ------
        PlanError
            If the cliques have more than `most_cells` cells together.
        """
        cells = sum(math.prod(self.sizes[name] for name in clique) for clique in self.tree.cliques)
        if cells > most_cells:
            raise PlanError("graphical", f"cliques with {cells:,} cells together", f"at most {most_cells:,} cells",
                            "query the release itself, whose model has groups of cells")  # fmt: skip

        conditionals = []
        for clique, shared in zip(self.tree.cliques, self.tree.separators, strict=True):
            table, known = self.marginal(clique) / self.total, shared
            for name in clique:
                if name in shared:
                    continue
                family = tuple(other for other in clique if other == name or other in known)
                joint = np.moveaxis(table.sum(axis=others(clique, family)), family.index(name), 0)
                of_parents = joint.sum(axis=0, keepdims=True)
                uniform = np.full(joint.shape, 1 / len(joint))  # where the parents have probability 0
                values = np.divide(joint, of_parents, out=uniform, where=of_parents > 0)
                parents = tuple(other for other in family if other != name)
                conditionals.append(Conditional(name, parents, values))
                known = (*known, name)

        return conditionals

    def to_bif(self, labels: Labels | None = None) -> str:
        """Return the Bayesian network in the Bayesian Interchange Format.

        States are in the order of the cells. Characters of names other than letters, digits, `_`, `-` and `.` are
        replaced by `_`, and names that become equal have a number.

        Raises
        ------
        PlanError
            If the cliques have too many cells for a text file.
        """
        tables = self.conditionals(MOST_BIF_CELLS)
        names = dict(zip(self.sizes, identifiers(self.sizes), strict=True))
        states = {name: identifiers((labels or {}).get(name, range(size))) for name, size in self.sizes.items()}
        lines = ["network dpscale {", "}"]
        for name, state in states.items():
            lines += [f"variable {names[name]} {{", f"  type discrete [ {len(state)} ] {{ {', '.join(state)} }};", "}"]
        for table in tables:
            lines += table.bif_lines(names, states)

        return "\n".join([*lines, ""])

    def _ordered(self, names: Sequence[str]) -> AttributeSet:
        """Return names in the model's order. Raises JobError for an unknown one."""
        for name in names:
            if name not in self.cells:
                raise JobError("attributes", f"{name!r}", ", ".join(self.cells), nearest(name, list(self.cells)))
        return tuple(name for name in self.cells if name in names)


def calibrate(
    tree: JunctionTree,
    clique_numbers: Mapping[AttributeSet, int],
    groups: Mapping[str, Groups],
    factors: Mapping[AttributeSet, Floats],
    cells: Mapping[str, Floats],
) -> Calibrated:
    """Return all probabilities, by one message passing.

    Parameters
    ----------
    tree : JunctionTree
    clique_numbers : mapping of AttributeSet to int
        A clique that contains each set of `factors` and each single attribute.
    groups : mapping of str to Groups
    factors : mapping of AttributeSet to ndarray
        Potentials (logarithms) over groups.
    cells : mapping of str to ndarray
        Potentials over the cells of each attribute.
    """
    sums: dict[AttributeSet, Floats] = {}
    within: dict[str, Floats] = {}
    for name, table in cells.items():
        largest = table.max()
        weights = np.exp(table - largest)
        of_group = coarsened(weights, [groups[name]])
        with np.errstate(divide="ignore"):
            sums[name,] = np.maximum(np.log(of_group), IMPOSSIBLE) + largest
        within[name] = weights / expanded(np.maximum(of_group, np.finfo(float).tiny), [groups[name]])

    cliques, log_total = calibrate_cliques(tree, assign_factors(tree, {**factors, **sums}, clique_numbers))
    return Calibrated(tuple(cliques), within, log_total)


def identifiers(names: Iterable[Any]) -> list[str]:
    """Return names without special characters, all different, also without regard to case."""
    found: dict[str, str] = {}
    for name in names:
        text = "null" if name is None else str(name)
        words = "".join(letter if letter.isalnum() or letter in "_-." else " " for letter in text).split()
        clean = "_".join(words) or "empty"
        unique, number = clean, 1
        while unique.casefold() in found:
            number += 1
            unique = f"{clean}_{number}"
        found[unique.casefold()] = unique

    return list(found.values())


def _import_pgmpy() -> Any:
    """Return pgmpy with its discrete factors and models; raise PlanError if it is missing.

    It is imported only here, because it imports scikit-learn, statsmodels and more.
    """
    try:
        return import_module("pgmpy.factors.discrete"), import_module("pgmpy.models")
    except ImportError:
        raise PlanError(
            "graphical", "pgmpy is not installed", "pgmpy 1.0 or later", "pip install 'dpscale[graphical]'"
        ) from None


def _bayesian_network(tables: Sequence[Conditional], states: Mapping[str, list[Any]]) -> Any:
    """Return a `pgmpy.models.DiscreteBayesianNetwork` of some tables."""
    factors, models = _import_pgmpy()
    network = models.DiscreteBayesianNetwork()
    network.add_nodes_from(list(states))

    for table in tables:
        family = (table.name, *table.parents)
        network.add_edges_from([(parent, table.name) for parent in table.parents])
        values, sizes = table.values.reshape(len(table.values), -1), list(table.values.shape[1:])
        names_of_cells = {name: states[name] for name in family}
        network.add_cpds(
            factors.TabularCPD(
                table.name, len(values), values, list(table.parents) or None, sizes or None, state_names=names_of_cells
            )
        )

    return network


def to_pgmpy(
    tree: JunctionTree,
    sizes: Mapping[str, int],
    law: Callable[[AttributeSet], Floats],
    states: Mapping[str, list[Any]] | None = None,
) -> Any:
    """Return a `pgmpy.models.DiscreteMarkovNetwork` over all cells (pip install 'dpscale[graphical]').

    The network has one factor per clique, the clique's probabilities given its separator, so the product of all factors
    is the joint distribution. Its graph is triangulated, so pgmpy's own junction tree has the same cliques. Fits use
    neither its triangulation, whose ties depend on the iteration order of sets, nor its messages, which are not in
    logarithms.

    Parameters
    ----------
    tree : JunctionTree
    sizes : mapping of str to int
        Number of cells of each attribute.
    law : callable
        Returns the probabilities of a clique's cells.
    states : mapping of str to list, optional
        Names of the cells.

    Raises
    ------
    PlanError
        If pgmpy is missing, or a clique has too many cells.
    """
    factors, models = _import_pgmpy()
    network = models.DiscreteMarkovNetwork()
    network.add_nodes_from(list(sizes))

    for index, clique in enumerate(tree.cliques):
        cells = int(np.prod([float(sizes[name]) for name in clique]))
        if cells > MOST_PGMPY_CELLS:
            raise PlanError("graphical", f"{cells:,} cells of {', '.join(clique)}",
                            f"at most {MOST_PGMPY_CELLS:,} cells per clique",
                            "query the model itself, which uses groups of cells")  # fmt: skip

        table = law(clique)
        of_separator = table.sum(axis=others(clique, tree.separators[index]), keepdims=True)
        values = np.divide(table, of_separator, out=np.zeros_like(table), where=of_separator > 0)
        network.add_edges_from(combinations(clique, 2))
        names_of_cells = {} if states is None else {"state_names": {name: states[name] for name in clique}}
        network.add_factors(
            factors.DiscreteFactor(list(clique), [sizes[name] for name in clique], values, **names_of_cells)
        )

    return network
