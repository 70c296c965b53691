"""An adaptive mechanism: pairs that form a spanning tree, all chosen in one round; otherwise as `aim-grem`."""

from dataclasses import fields

from dpscale.mechanisms import aim_grem
from dpscale.mechanisms.aim.adaptive_plan import AdaptivePlan
from dpscale.mechanisms.aim.decision import AimSelection
from dpscale.mechanisms.contract import Mechanism, NoOptions


class TreeSelection(AimSelection):
    """Pairs that close a circle are lost."""

    def excluded(self, chosen):
        root = {name: name for names in self.candidates for name in names}

        def root_of(name):
            return name if root[name] == name else root_of(root[name])

        for one, other in chosen:
            root[root_of(one)] = root_of(other)
        return [place for place, (one, other) in enumerate(self.candidates) if root_of(one) == root_of(other)]


class Tree(AdaptivePlan):
    """One round takes the whole tree, all of whose edges are pairs, and all that is left of the budget."""

    def next_selection(self, state):
        asked = super().next_selection(state)
        count = len(self.setting.names) - 1
        step = state.left / count
        cost = self.setting.schedule.selecting * step
        mine = {field.name: getattr(asked, field.name) for field in fields(AimSelection)} if asked else {}
        mine |= {"candidates": state.offered, "count": count, "beta": cost, "step": step - cost}
        return TreeSelection(**mine) if asked else None


def plan(problem, options, tools=None):
    chosen = aim_grem.plan(problem, aim_grem.Options())
    return Tree(**{field.name: getattr(chosen, field.name) for field in fields(AdaptivePlan)} | {"mechanism": "tree"})


def read(folder, problem, options):
    return plan(problem, options)


def forms(options):
    return ("low_order",)


MECHANISM = Mechanism("tree", NoOptions, plan, read, forms, data_independent=False)
