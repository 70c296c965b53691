"""Workload as a weighted union of Kronecker products over the attributes that it uses (HDMM, section 5).

Every set of a product family is one product: the family's Gram matrix WᵀW on each named attribute, the Gram matrix 11ᵀ
of Total on the others, and the set's weight (the square of the paper's w_j). Equal products are merged. A strategy A of
sensitivity 1 is characterised by its error coefficient tr(G (AᵀA)⁺), where G is the weighted sum of the products' Gram
matrices and the sensitivity is the largest norm of a column: L2 for Gaussian, L1 for Laplace noise. All errors of HDMM
and Eigen-Design are in that unit: multiplied by σ² at unit sensitivity they are sums of squared errors.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.optimize.residual_grams import Demand, Demands, Term, is_product
from dpscale.workload import Family, Workload, WorkloadPart
from dpscale.workload.residual import kron
from dpscale.workload.wide import DENSE, is_wide

TOTAL = "total"
EXPLICIT_CELLS = 8192  # default limit of the cells of an explicit Gram matrix, which then has 512 MiB


@dataclass(frozen=True, eq=False)
class AxisGram:
    """Gram matrix of one-way queries on one attribute, shape (n, n); equal keys mean equal matrices."""

    key: str
    gram: Floats
    is_total: bool = False
    is_identity: bool = False


@dataclass(frozen=True, eq=False)
class Product:
    """weight · ⊗ Gram matrices, one for every attribute of the union, Total for attributes that are not named."""

    weight: float
    axes: tuple[AxisGram, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(axis.key for axis in self.axes)


@dataclass(frozen=True, eq=False)
class Implicit:
    """Union of products over the attributes `names`, in domain order, of `sizes`; unused attributes are omitted."""

    names: AttributeSet
    sizes: tuple[int, ...]
    products: tuple[Product, ...]

    @property
    def cells(self) -> int:
        return math.prod(self.sizes)

    def distinct(self, axis: int) -> dict[str, Floats]:
        """Return the distinct Gram matrices on one axis by key."""
        return {product.axes[axis].key: product.axes[axis].gram for product in self.products}

    def named(self, product: Product) -> AttributeSet:
        """Return the attributes that a product names."""
        return tuple(name for name, axis in zip(self.names, product.axes, strict=True) if not axis.is_total)

    def only(self, products: tuple[Product, ...]) -> Implicit:
        """Return the union of some of the products, on the attributes that they name."""
        used = [i for i in range(len(self.names)) if any(not product.axes[i].is_total for product in products)]
        cut = (Product(product.weight, tuple(product.axes[i] for i in used)) for product in products)
        return Implicit(tuple(self.names[i] for i in used), tuple(self.sizes[i] for i in used), tuple(cut))

    def times_gram(self, rows: Floats) -> Floats:
        """Return rows (r, cells) times the full Gram matrix, attribute by attribute.

        Total on an axis replaces values by their sum along it, the identity leaves them as they are.
        """
        total = np.zeros_like(rows)
        for product in self.products:
            multiplied = rows.reshape(len(rows), *self.sizes)
            for axis, factor in enumerate(product.axes, start=1):
                if factor.is_total:
                    multiplied = np.broadcast_to(multiplied.sum(axis=axis, keepdims=True), multiplied.shape)
                elif not factor.is_identity:
                    multiplied = np.moveaxis(np.tensordot(multiplied, factor.gram, axes=(axis, 0)), -1, axis)
            total += product.weight * multiplied.reshape(rows.shape)

        return total

    def gram(self) -> Floats:
        """Return the full Gram matrix, (cells, cells), for small domains."""
        total = np.zeros((self.cells,) * 2)
        for product in self.products:
            total += product.weight * kron([axis.gram for axis in product.axes])
        return total


def implicit(workload: Workload, relative: bool = False) -> Implicit:
    """Return a workload as a union of products.

    Parameters
    ----------
    workload : Workload
    relative : bool
        Scale every query to L2 norm 1, for relative error (Eigen-Design, section 3.4).

    Raises
    ------
    PlanError
        If a joint family or array covers several attributes.
    """
    used = {name for part in workload.parts for names in _weighed(part) for name in names}
    names = tuple(name for name in workload.domain.axis_names if name in used)
    merged: dict[tuple[str, ...], Product] = {}
    for part in workload.parts:
        for attributes, weight in _weighed(part).items():
            by_name = dict(zip(attributes, _axes(part, attributes, relative), strict=True))
            axes = tuple(by_name.get(name) or _total(workload.domain[name].size, relative) for name in names)
            keys = Product(weight, axes).keys
            before = merged[keys].weight if keys in merged else 0.0  # equal products are one, with their weights added
            merged[keys] = Product(before + weight, axes)

    return Implicit(names, workload.domain.shape(names), tuple(merged.values()))


def explicit_gram(
    workload: Workload, limit: int = EXPLICIT_CELLS, relative: bool = False
) -> tuple[AttributeSet, Floats]:
    """Return the attributes of any workload and the Gram matrix over all their cells, row-major.

    Raises PlanError if there are more than `limit` cells.

    The array of all Gram matrices has two copies of the axes, for rows and columns; a set's matrix has length 1 on axes
    that it does not name, so it broadcasts as 11ᵀ there.
    """
    used = {name for part in workload.parts for names in _weighed(part) for name in names}
    names = tuple(name for name in workload.domain.axis_names if name in used)
    sizes, cells = workload.domain.shape(names), workload.domain.cells(names)
    if cells > limit:
        raise PlanError("workload", f"{cells} cells over {', '.join(names)}", f"at most {limit} cells as one matrix",
                        "coarsen or drop attributes, or use query-smasher")  # fmt: skip

    total = np.zeros((cells, cells)).reshape(sizes * 2)
    for part in workload.parts:
        for attributes, weight in _weighed(part).items():
            shape = tuple(n if name in attributes else 1 for name, n in zip(names, sizes, strict=True))
            total += weight * set_gram(part, attributes, relative, cells).reshape(shape * 2)

    return names, total.reshape(cells, cells)


def _weighed(part: WorkloadPart) -> dict[AttributeSet, float]:
    """Return the sets of a part with positive weight."""
    weights: dict[AttributeSet, float] = {}
    for attributes, weight in zip(part.sets, part.weights, strict=True) if part.weighs else ():
        if weight > 0:
            weights[attributes] = weights.get(attributes, 0.0) + weight
    return weights


def _axes(part: WorkloadPart, attributes: AttributeSet, relative: bool) -> list[AxisGram]:
    """Return the Gram matrix of a set on each of its attributes."""
    if part.factorizes:
        sizes = part.domain.shape(attributes)
        return [_family(family, n, relative) for family, n in zip(part.families(attributes), sizes, strict=True)]
    if len(attributes) == 1:
        return [AxisGram(f"{part.key(attributes)}{'/unit' * relative}", _rows_gram(part, attributes, relative))]

    raise PlanError(
        "workload",
        f"family {part.name} over {', '.join(attributes)}, which is not a product of one-way families",
        "products of one-way families, and any family over one attribute",
        f"use query-smasher, or a domain of at most {EXPLICIT_CELLS} cells",
    )


def set_gram(part: WorkloadPart, attributes: AttributeSet, relative: bool = False, cells: int = 1) -> Floats:
    """Return the Gram matrix of one set on its cells; if `relative`, scaled for the norm on the other cells.

    Queries of norm 1 on all cells are those of norm 1 on the set divided by the root of the number of other cells, in
    which they are constant; `cells` is the number of all cells.
    """
    if part.factorizes:
        total = kron([axis.gram for axis in _axes(part, attributes, relative)])
    else:
        total = _rows_gram(part, attributes, relative)
    return np.asarray(total * (part.domain.cells(attributes) / cells if relative else 1.0))


def _rows_gram(part: WorkloadPart, attributes: AttributeSet, relative: bool) -> Floats:
    """Return Σ weight · qᵀq over the queries of a joint family or an array.

    If `relative`, each query q is divided by its length, so that its weight is divided by |q|²; queries of zeros count
    nothing.
    """
    queries = part.queries(attributes)
    flat = queries.reshape(len(queries), -1)
    weights = part.query_weights(attributes)
    if relative:
        lengths = (flat**2).sum(axis=1)
        weights = np.divide(weights, lengths, out=np.zeros_like(weights, dtype=np.float64), where=lengths > 0)
    return np.asarray((flat * weights[:, None]).T @ flat)


@lru_cache(maxsize=512)
def _family(family: Family, size: int, relative: bool) -> AxisGram:
    """Return the Gram matrix of a one-way family on an axis of `size` cells, of queries of norm 1 if `relative`."""
    _check_narrow(size)
    if relative:
        return AxisGram(f"{family.key}/{size}/unit", family.unit_gram(size), is_identity=family.is_identity)
    return AxisGram(f"{family.key}/{size}", family.gram(size), is_identity=family.is_identity)


@lru_cache(maxsize=512)
def _total(size: int, relative: bool) -> AxisGram:
    _check_narrow(size)
    return AxisGram(f"{TOTAL}/{size}", np.full((size, size), 1 / size if relative else 1.0), is_total=True)


def _check_narrow(size: int) -> None:
    """Raise PlanError for an axis whose Gram matrix is too large; these mechanisms build the full matrix."""
    if is_wide(size):
        raise PlanError("workload", f"an attribute of {size} cells", f"at most {DENSE} cells with this mechanism",
                        "coarsen the attribute, or use weighted-residuals or query-smasher")  # fmt: skip


Groups = list[tuple[Product, ...]]


def distinct_groupings(union: Implicit) -> list[Groups]:
    """Return two groupings: single products (the paper's choice), and products grouped by `gather` if that differs."""
    alone: Groups = [(product,) for product in union.products]
    gathered = gather(union)
    return [alone] if len(gathered) == len(alone) else [alone, gathered]


def gather(union: Implicit) -> Groups:
    """Group products under the smallest of the maximal products that name all their attributes.

    A maximal product is the head of a group; products are visited from those with the most attributes.
    """
    by_size = sorted(union.products, key=lambda product: -len(union.named(product)))
    size_of = dict(zip(union.names, union.sizes, strict=True))
    heads: dict[frozenset[str], list[Product]] = {}
    for product in by_size:
        named = frozenset(union.named(product))
        containing = [head for head in heads if named <= head]
        if containing:
            heads[min(containing, key=lambda head: math.prod(size_of[name] for name in head))].append(product)
        else:
            heads[named] = [product]

    return [tuple(group) for group in heads.values()]


NEAR = 0.25  # of the logarithm of a term's share


def merged(demands: Demands, power: float) -> Demands:
    """Return the demands with similar sums replaced by their mean; `power` is the exponent of L in the objective.

    Products stay as they are. Sums are similar if they have the same terms with nearly the same shares (`_mix`).
    """
    groups: dict[object, list[tuple[Demand, int]]] = defaultdict(list)
    for demand, number in demands.counts.items():
        key = demand if is_product(term for term, _ in demand) else _mix(demand)
        groups[key].append((demand, number))

    counts: Counter[Demand] = Counter()
    for group in groups.values():
        counts[group[0][0] if len(group) == 1 else _mean(group, power)] += sum(number for _, number in group)
    return replace(demands, counts=counts)


def _mix(demand: Demand) -> object:
    """Return a key that is equal for similar sums: the terms, each with the rounded logarithm of its share."""
    whole = math.fsum(weight for _, weight in demand)
    return frozenset((term, round(math.log(weight / whole) / NEAR)) for term, weight in demand)


def _mean(group: list[tuple[Demand, int]], power: float) -> Demand:
    """Return the mean of the shares, weighted by contributions to J, at the scale that preserves their total.

    A demand contributes number · (Σ weights)^power (`adds`); shares of a demand's terms are averaged with these, and
    the mean has the scale at which its multiplicity times scale^power is their sum.
    """
    shares: dict[Term, float] = defaultdict(float)
    adds = [number * math.fsum(weight for _, weight in demand) ** power for demand, number in group]
    for (demand, _), add in zip(group, adds, strict=True):
        whole = math.fsum(weight for _, weight in demand)
        for term, weight in demand:
            shares[term] += add / math.fsum(adds) * weight / whole

    scale = (math.fsum(adds) / sum(number for _, number in group)) ** (1 / power)
    return frozenset((term, scale * share) for term, share in shares.items())
