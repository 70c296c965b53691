"""Graphical models: log-potentials over measured sets, and the marginals that they define, by a junction tree.

p(x) ∝ exp(Σ_S θ_S(x_S) + Σ_i θ_i(x_i)). The tables θ_S are over groups of cells and the θ_i over cells, so the junction
tree is over groups: the share of a cell in its group depends on θ_i alone, exactly, and not on other attributes.

*Junction tree.* The cliques of a maximum-entropy model follow from a triangulation of the measured sets.
Attributes that are measured together are neighbours. Eliminating an attribute joins its neighbours. The maximal cliques
of the resulting graph form a tree in which the attributes shared by two cliques are in every clique on the path between
them (Koller and Friedman, 2009, chapters 9 and 10). The order of elimination is greedy, by the better of two rules,
with ties by the domain's order: the same sets give the same tree in every process. Triangulations that iterate over
Python sets (pgmpy, networkx) differ between processes, and the next choice of an adaptive run depends on the
triangulation.
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
from dpscale.workload.residual import Groups, coarsened, expanded

Neighbours = dict[str, set[str]]
Price = Callable[[Neighbours, str], tuple[float, float]]

MOST_PGMPY_CELLS = 1 << 26  # cells of a clique, or of all cliques of a Bayesian network: 512 MiB of floats
MOST_BIF_CELLS = 1 << 22  # probabilities in a text file, about 20 bytes each
Labels = Mapping[str, Sequence[Any]]
IMPOSSIBLE = -1e4  # log-potential of impossible cells; finite, so that differences are defined


@dataclass(frozen=True, eq=False)
class JunctionTree:
    """Cliques in an order in which each follows its parent.

    Components without common attributes are joined by empty separators.

    Attributes
    ----------
    sizes : mapping of str to int
        Number of cells of every attribute; defines the order of attributes in cliques.
    cliques : tuple of AttributeSet
    parents : tuple of int
        Index of the parent of each clique, smaller than its own; −1 for the root.
    """

    sizes: Mapping[str, int]
    cliques: tuple[AttributeSet, ...]
    parents: tuple[int, ...]

    @cached_property
    def separators(self) -> tuple[AttributeSet, ...]:
        """Attributes that each clique shares with its parent."""
        pairs = zip(self.cliques, self.parents, strict=True)
        return tuple(tuple(name for name in clique if parent >= 0 and name in self.cliques[parent])
                     for clique, parent in pairs)  # fmt: skip

    @cached_property
    def cells(self) -> int:
        """Number of cells of all cliques together, the size of the model."""
        return sum(cells_of(self.sizes, clique) for clique in self.cliques)

    def shape(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.sizes[name] for name in names)

    def smallest_clique(self, names: Iterable[str]) -> int:
        """Return the index of the smallest clique that contains these attributes; −1 if none does."""
        wanted = set(names)
        holding = [i for i, clique in enumerate(self.cliques) if wanted <= set(clique)]
        return min(holding, key=lambda i: cells_of(self.sizes, self.cliques[i]), default=-1)


def cells_of(sizes: Mapping[str, int], names: Iterable[str]) -> int:
    return math.prod(sizes[name] for name in names)


def junction_tree(sizes: Mapping[str, int], sets: Iterable[AttributeSet]) -> JunctionTree:
    """Return the junction tree of some sets; an attribute in no set is a clique by itself.

    Parameters
    ----------
    sizes : mapping of str to int
        Number of cells of each attribute.
    sets : iterable of AttributeSet
    """
    graph: Neighbours = {name: set() for name in sizes}
    for names in sets:
        for name in names:
            graph[name].update(other for other in names if other != name)

    # the smaller result of two orders of elimination
    eliminations = [_cliques(sizes, graph, price) for price in (_fill(sizes), _weight(sizes))]
    cliques = min(eliminations, key=lambda cliques: sum(cells_of(sizes, clique) for clique in cliques))
    return _spanning(sizes, cliques)


def model_cells(sizes: Mapping[str, int], sets: Iterable[AttributeSet]) -> int:
    """Return the number of cells of the cliques of some sets together."""
    return junction_tree(sizes, sets).cells


def _fill(sizes: Mapping[str, int]) -> Price:
    """Return a price: the cells of new neighbours' tables, then those of the clique."""

    def price(graph: Neighbours, name: str) -> tuple[float, float]:
        """Return the cells of the pairs that eliminating an attribute joins, and then those of its clique."""
        neighbours = sorted(graph[name])
        new = sum(sizes[a] * sizes[b] for a, b in combinations(neighbours, 2) if b not in graph[a])
        return new, cells_of(sizes, [name, *neighbours])

    return price


def _weight(sizes: Mapping[str, int]) -> Price:
    """Return a price: the cells of the clique."""
    return lambda graph, name: (cells_of(sizes, [name, *graph[name]]), 0)


def _cliques(sizes: Mapping[str, int], measured: Neighbours, price: Price) -> list[AttributeSet]:
    """Return the maximal cliques of an elimination: attributes are removed, the one of least price first.

    An attribute and its neighbours are a clique; when it is removed, its neighbours are joined with each other.
    """
    graph = {name: set(neighbours) for name, neighbours in measured.items()}
    maximal: list[frozenset[str]] = []
    prices = {name: price(graph, name) for name in graph}

    while graph:
        name = min(graph, key=prices.__getitem__)  # ties: the first in the domain's order
        neighbours = graph.pop(name)
        if not any({name, *neighbours} <= clique for clique in maximal):
            maximal.append(frozenset({name, *neighbours}))
        changed = set(neighbours)

        for neighbour in neighbours:
            graph[neighbour] |= neighbours - {neighbour}
            graph[neighbour].discard(name)
            changed |= graph[neighbour]

        prices.update({changed_name: price(graph, changed_name) for changed_name in changed})

    return [tuple(name for name in sizes if name in clique) for clique in maximal]


def _spanning(sizes: Mapping[str, int], cliques: Sequence[AttributeSet]) -> JunctionTree:
    """Return a tree of largest separators (Prim's algorithm), starting from the largest clique.

    A separator is the set of attributes that two cliques share. A tree of largest separators over the cliques of a
    triangulation has the running intersection property.
    """
    remaining = sorted(cliques, key=lambda clique: -cells_of(sizes, clique))
    ordered, parents = remaining[:1], [-1] if remaining else []
    # of each remaining clique, the size of its largest separator and the number of the clique in the tree
    nearest = [(len(set(clique) & set(ordered[0])), 0) for clique in remaining[1:]]
    remaining = remaining[1:]

    while remaining:
        best = max(range(len(remaining)), key=lambda i: (nearest[i][0], -i))
        chosen = remaining.pop(best)
        _, parent = nearest.pop(best)
        parents.append(parent)
        ordered.append(chosen)
        for i, other in enumerate(remaining):
            shared = len(set(chosen) & set(other))
            if shared > nearest[i][0]:
                nearest[i] = (shared, len(ordered) - 1)

    return JunctionTree(dict(sizes), tuple(ordered), tuple(parents))


def log_sum(table: Floats, axes: tuple[int, ...]) -> Floats:
    """Return log Σ exp over some axes.

    The largest entry is subtracted first, so that exponentials do not overflow.
    """
    if not axes:
        return table
    most = table.max(axis=axes, keepdims=True)
    return np.asarray(np.log(np.exp(table - most).sum(axis=axes)) + most.squeeze(axes))


def largest(table: Floats, axes: tuple[int, ...]) -> Floats:
    return np.asarray(table.max(axis=axes)) if axes else table


def others(names: AttributeSet, subset: Sequence[str]) -> tuple[int, ...]:
    """Return the axes of a table over `names` that are not among `subset`."""
    return tuple(axis for axis, name in enumerate(names) if name not in subset)


def aligned(table: Floats, names: AttributeSet, clique_names: AttributeSet) -> Floats:
    """Return a table over `names` with an axis of length one for every other attribute of `clique_names`."""
    sizes = dict(zip(names, table.shape, strict=True))
    return table.reshape([sizes.get(name, 1) for name in clique_names])


def assign_factors(
    tree: JunctionTree, factors: Mapping[AttributeSet, Floats], clique_numbers: Mapping[AttributeSet, int]
) -> list[Floats]:
    """Return the log-potential of every clique: the sum of the factors assigned to it."""
    tables = [np.zeros(tree.shape(clique)) for clique in tree.cliques]
    for names, table in factors.items():
        tables[clique_numbers[names]] += aligned(table, names, tree.cliques[clique_numbers[names]])
    return tables


def collect_messages(
    tree: JunctionTree, potentials: list[Floats], reduced: object = log_sum
) -> tuple[list[Floats], Floats]:
    """Return every clique's message to its parent, and log Z or the largest log-potential.

    `potentials` are updated in place; afterwards each includes all messages from its children.

    Children have larger indices than their parents, so a pass from the last clique to the first collects all messages.
    A message sums (or takes the maximum) over the attributes that the parent does not have; the root's has no axes.
    """
    reduce = largest if reduced is largest else log_sum
    messages: list[Floats] = [np.zeros(())] * len(potentials)
    for index in range(len(potentials) - 1, -1, -1):
        clique, parent, shared = tree.cliques[index], tree.parents[index], tree.separators[index]
        messages[index] = reduce(potentials[index], others(clique, shared))
        if parent >= 0:
            potentials[parent] += aligned(messages[index], shared, tree.cliques[parent])
    return messages, messages[0]


def calibrate_cliques(tree: JunctionTree, potentials: list[Floats]) -> tuple[list[Floats], float]:
    """Return the probabilities of every clique's cells, and log Z. `potentials` are overwritten.

    Cliques are processed after their parents, which send the probabilities of the separator divided by the message.

    After the first pass the root's table is its log-probability plus log Z. A child's table already has the factors
    below it, whose sum over its other attributes is its message, so log p(separator) − message completes it.
    """
    messages, total = collect_messages(tree, potentials)
    for index, clique in enumerate(tree.cliques):
        parent, shared = tree.parents[index], tree.separators[index]
        table = potentials[index]
        if parent < 0:
            table -= total
        else:  # the parent's table now contains probabilities
            of_separator = potentials[parent].sum(axis=others(tree.cliques[parent], shared))
            with np.errstate(divide="ignore"):
                table += aligned(np.log(of_separator) - messages[index], shared, clique)
        np.exp(table, out=table)

    return potentials, float(total)


Labelled = tuple[AttributeSet, Floats]


def over_tree(tree: JunctionTree, cliques: Sequence[Floats], wanted: AttributeSet) -> Floats:
    """Return the probabilities of `wanted`, one axis each in that order, from the probabilities of the cliques.

    Each clique contributes the probability of its relevant attributes given those shared with its parent; products are
    summed over attributes that neither `wanted` nor the parent needs.
    """
    where = {name: next(index for index, clique in enumerate(tree.cliques) if name in clique) for name in wanted}
    needed = _joining(tree, set(where.values()))
    messages: dict[int, list[Labelled]] = {index: [] for index in needed}

    for index in sorted(needed, reverse=True):
        has_parent = tree.parents[index] in needed
        shared = tree.separators[index] if has_parent else ()
        received = messages[index]
        table = _own(tree, cliques, index, shared, received, wanted)
        subset = {*wanted, *shared} & {name for names, _ in [*received, table] for name in names}
        message = _product([table, *received], tuple(name for name in tree.sizes if name in subset))
        if not has_parent:
            return message[1]
        messages[tree.parents[index]].append(message)

    raise AssertionError("a tree without a root")


def _joining(tree: JunctionTree, cliques: set[int]) -> set[int]:
    """Return the cliques on the paths between some cliques.

    Cliques above the lowest common ancestor (`top`, the common one with the largest index) are not needed.
    """
    paths = [_upwards(tree, index) for index in cliques]
    common = set.intersection(*map(set, paths))
    top = max(common)
    return {index for path in paths for index in path if index not in common} | {top}


def _upwards(tree: JunctionTree, index: int) -> list[int]:
    """Return a clique and all cliques above it, up to the root."""
    path = [index]
    while tree.parents[path[-1]] >= 0:
        path.append(tree.parents[path[-1]])
    return path


def _own(tree: JunctionTree, cliques: Sequence[Floats], index: int, shared: AttributeSet,
         received: Sequence[Labelled], wanted: AttributeSet) -> Labelled:  # fmt: skip
    """Return a clique's probabilities of the relevant attributes, given the attributes shared with the parent.

    `index` is the clique, `shared` the attributes that it has with its parent, `received` the tables of its children,
    and `wanted` the attributes of the result. Without shared attributes, probabilities are not conditional.
    """
    clique = tree.cliques[index]
    relevant = {*wanted, *shared, *(name for names, _ in received for name in names)}
    subset = tuple(name for name in clique if name in relevant)
    table = cliques[index].sum(axis=others(clique, subset))
    of_shared = table.sum(axis=others(subset, shared), keepdims=True)
    return subset, np.divide(table, of_shared, out=np.zeros_like(table), where=of_shared > 0) if shared else table


def _product(tables: Sequence[Labelled], subset: AttributeSet) -> Labelled:
    """Return the product of some tables, summed over all attributes except `subset`."""
    letters = {name: number for number, name in enumerate({name: None for names, _ in tables for name in names})}
    operands: list[object] = []
    for names, table in tables:
        operands += [table, [letters[name] for name in names]]
    table = np.einsum(*operands, [letters[name] for name in subset], optimize=len(tables) > 2)  # type: ignore[call-overload]
    return subset, np.asarray(table)


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
        condition = f" | {', '.join(names[parent] for parent in self.parents)}" if self.parents else ""
        rows = np.moveaxis(self.values, 0, -1).reshape(-1, len(self.values))
        keys = [f"({', '.join(key)})" for key in product(*(states[parent] for parent in self.parents))]
        heads = keys if self.parents else ["table"]
        lines = [f"  {head} {', '.join(map(repr, row))};" for head, row in zip(heads, rows.tolist(), strict=True)]
        return [f"probability ( {names[self.name]}{condition} ) {{", *lines, "}"]


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
        for name, evidence in cells.items():
            self._ordered([name])
            for cell in evidence if isinstance(evidence, Sequence) else [evidence]:
                if not 0 <= cell < len(known[name]):
                    last = len(known[name]) - 1
                    raise JobError("given", f"{name} = {cell}", f"a cell from 0 to {last}", "correct it")
            known[name] = np.where(np.isin(np.arange(len(known[name])), evidence), known[name], IMPOSSIBLE)

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
        logarithms = np.full(len(next(iter(groups.values()))), -self.calibrated.log_total)
        for names, table in self.factors.items():
            logarithms += table[tuple(groups[name] for name in names)]
        for name, table in self.cells.items():
            logarithms += table[codes[name]]
        return logarithms

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
    unique_names: dict[str, str] = {}
    for name in names:
        text = "null" if name is None else str(name)
        words = "".join(letter if letter.isalnum() or letter in "_-." else " " for letter in text).split()
        clean = "_".join(words) or "empty"
        unique, number = clean, 1
        while unique.casefold() in unique_names:
            number += 1
            unique = f"{clean}_{number}"
        unique_names[unique.casefold()] = unique

    return list(unique_names.values())


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
