"""An adaptive mechanism: pairs of a spanning tree, all selected in one round; otherwise as `aim-grem`."""

from dataclasses import fields, replace

from dpscale.mechanisms import aim_grem
from dpscale.mechanisms.aim.decision import AimSelection
from dpscale.mechanisms.aim.state import AimState
from dpscale.mechanisms.contract import Mechanism, NoOptions


class TreeSelection(AimSelection):
    """A selection that excludes pairs that would close a cycle."""

    def excluded(self, chosen):
        root = {name: name for names in self.candidates for name in names}

        def root_of(name):
            return name if root[name] == name else root_of(root[name])

        for one, other in chosen:
            root[root_of(one)] = root_of(other)
        return [place for place, (one, other) in enumerate(self.candidates) if root_of(one) == root_of(other)]


class TreeState(AimState):
    """A state with one round for the whole tree and all of the remaining budget."""

    @property
    def selection(self):
        selection = super().selection
        if selection is None:
            return None
        count = len(self.setting.names) - 1
        step = self.left / count
        cost = self.setting.schedule.selecting * step
        mine = {field.name: getattr(selection, field.name) for field in fields(AimSelection)}
        mine |= {"candidates": self.offered, "count": count, "beta": cost, "step": step - cost}
        return TreeSelection(**mine)


def plan(problem, options, tools=None):
    chosen = aim_grem.plan(problem, aim_grem.Options())
    return replace(chosen, mechanism="tree", setting=replace(chosen.setting, state=TreeState))


def read(folder, problem, options):
    return plan(problem, options)


def forms(options):
    return ("low_order",)


MECHANISM = Mechanism("tree", NoOptions, plan, read, forms, data_independent=False)
