"""Small uneven trees, their dense matrices, and domains and plans over them."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.domain import Domain
from dpscale.domain.hierarchy import Tree
from dpscale.mechanisms import plan
from dpscale.plans.plan import Plan
from dpscale.plans.tree import TreeFactor
from dpscale.workload import Workload
from tests.audit.small import write_selftest

LEVELS = {"place": ("country", "region", "place"), "code": ("chapter", "group", "code")}


def random_parents(sizes, seed):
    """Return uneven parents: every node has a child, in no order."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.concatenate([np.arange(above), rng.integers(0, above, below - above)])).astype(np.int64)
            for above, below in pairwise(sizes)]  # fmt: skip


def random_tree(sizes, seed):
    return Tree(tuple(random_parents((1, *sizes), seed)))


def domain_of(sizes, seed=0, **others):
    """Return a domain with hierarchies of three levels, each from nested parents, and coded attributes."""
    tables = {}
    for leaf, own in sizes.items():
        names = LEVELS[leaf]
        of_leaf = np.arange(own[-1])
        parents = {}
        for level, above in zip(names[-2::-1], reversed(random_parents(own, seed)), strict=True):
            of_leaf = above[of_leaf]
            cells = np.arange(own[names.index(level)])
            parents[level] = {f"{level} {c}": [f"{leaf} {i}" for i in np.flatnonzero(of_leaf == c)] for c in cells}
        tables[leaf] = {"kind": "categories", "values": [f"{leaf} {i}" for i in range(own[-1])], "parent": parents}
    tables |= {name: {"kind": "coded", "size": size} for name, size in others.items()}
    return Domain.from_dict({"attributes": tables})


def lift(domain, names):
    """Return the matrix from the cells of all leaf attributes to those of a set, levels included."""
    matrices = []
    for attribute in domain.attributes:
        own = domain.hierarchy_of(attribute.name)
        if own is not None and attribute.name != own.leaf:
            continue
        level = next((name for name in names if own is not None and name in own.names), None)
        if level is not None:
            of_leaf = own.ancestors(level)
            matrices.append((np.arange(domain[level].size)[:, None] == of_leaf).astype(float))
        elif attribute.name in names:
            matrices.append(np.eye(attribute.size))
        else:
            matrices.append(np.ones((1, attribute.size)))
    return reduce(np.kron, matrices)


def ordered(domain, names):
    """Return a set in the order of the axes of `lift`: each level in the place of its leaf."""
    place = {one.name: i for i, one in enumerate(domain.attributes)}
    leaf = {name: own.leaf for own in domain.hierarchies for name in own.names}
    return tuple(sorted(names, key=lambda name: place[leaf.get(name, name)]))


def dense(made: Plan):
    """Return the rows of all measurements over the cells of the leaf attributes, their precisions, and the costs."""
    domain, rows, precisions, cost = made.domain, [], [], 0.0
    for block in made.blocks:
        by_name = dict(zip(block.attributes, block.factors, strict=True))
        own = reduce(
            np.kron, [by_name[n].explicit().astype(float) for n in ordered(domain, block.attributes)], np.eye(1)
        )
        matrix = own @ lift(domain, block.attributes)
        rows.append(matrix)
        precisions += [1 / block.unit_variance] * len(matrix)
        cost = cost + (matrix**2).sum(axis=0) / block.unit_variance
    return np.vstack(rows), np.array(precisions), cost


def planned(domain, sets, **options):
    return plan(Workload(domain).add("marginal", attributes=sets), **options)


def random_factor(seed, centred):
    """Return a strategy with random multipliers, some of them 0, on a random tree."""
    rng = np.random.default_rng(seed)
    sizes = np.cumsum(rng.integers(0, 5, rng.integers(1, 4))) + 2
    tree = random_tree(tuple(sizes.tolist()), seed)
    own = [rng.integers(0, 5, size) for size in tree.sizes]
    own[-1] += 1
    own[0] *= not centred
    spread = rng.integers(1, 9, tree.sizes[-1]) if centred else None
    return TreeFactor("tree", tree.sizes[-1:], tree=tree, multipliers=tuple(own), spread=spread)


def check_evidence(run):
    """Write the evidence of a run and check it as an auditor does."""
    selftest = write_selftest(run.parent)
    for command in (
        ["evidence", str(run), "--selftest", str(selftest)],
        ["evidence", "--check", str(run / "evidence")],
    ):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
