"""Synthesis with the interface of scikit-learn's estimators: `Synthesizer(...).fit(frame).sample(n)`.

It is a release of all marginals of a degree (`plan` and `run`) with synthetic rows. A fit is one release, which is
charged once; samples cost nothing, and samples of one number of rows are the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dpscale.answers.statistics import evidence_of
from dpscale.api.answers import frame_type
from dpscale.api.planning import ReleasePlan, plan
from dpscale.api.public import run
from dpscale.api.release import Release
from dpscale.base.display import safe_repr, type_of_value
from dpscale.base.errors import JobError
from dpscale.base.progress import Progress, lines, shown
from dpscale.domain import Domain
from dpscale.mechanisms import DEFAULT_OF_ROWS, mechanism as mechanism_named, mechanism_names
from dpscale.runs.opening import open_run
from dpscale.runs.runner import run_stages
from dpscale.runs.stages.synthesize import conditional_rows, request_rows
from dpscale.workload import MARGINAL, Workload

if TYPE_CHECKING:
    from pandas import DataFrame


LEAST_DEGREE, MOST_DEGREE = 2, 6  # of the candidates of adaptive mechanisms


class Synthesizer:
    """Differentially private synthetic rows.

    Parameters
    ----------
    domain : Domain
        Public values of the attributes.
    epsilon : float
        Privacy budget of a fit.
    delta : float, optional
        Without it a fit satisfies pure ε-DP.
    degree : int
        Marginals of so many attributes are measured or, by an adaptive mechanism, candidates. Rows keep a dependence
        that only sets of `degree` attributes show if it exceeds the noise.
    mechanism : str
        Name of a mechanism.
    target : str, optional
        Attribute that is to be predicted from the others: its pairs and triples are measured more precisely.
    options : mapping of str to object, optional
        Options of the mechanism. Default of `degree` of an adaptive mechanism: that of the synthesizer.
    unit : str or sequence of str, optional
        Column that identifies the protected unit. Default: one row is protected.
    rows_per_unit : int, optional
        Largest number of rows of a unit that are counted; required with `unit`.
    dataset : str, optional
        Name of the data in the ledger. Default: "default".
    ledger : str or Path, optional
        Path or address of the ledger. Default: ledger.sqlite in the user's data folder.
    rules : sequence of str
        Public rules between attributes that all rows satisfy, beside those of the domain.

    Attributes
    ----------
    release_ : Release
        Release of the last fit.

    Examples
    --------
    >>> import dpscale as dp
    >>> dp.Synthesizer(dp.Domain(a=3), epsilon=1.0).get_params()["degree"]
    3
    """

    release_: Release

    def __init__(  # noqa: PLR0913 (parameters of an estimator of scikit-learn)
        self,
        domain: Domain,
        *,
        epsilon: float,
        delta: float | None = 1e-9,
        degree: int = 3,
        mechanism: str = DEFAULT_OF_ROWS,
        target: str | None = None,
        options: Mapping[str, Any] | None = None,
        unit: str | Sequence[str] | None = None,
        rows_per_unit: int | None = None,
        dataset: str | None = None,
        ledger: str | Path | None = None,
        rules: Sequence[str] = (),
    ) -> None:
        """Store the parameters, which are those of the class; `fit` checks them."""
        self.domain, self.epsilon, self.delta, self.degree, self.mechanism = domain, epsilon, delta, degree, mechanism
        self.target, self.options = target, options
        self.unit, self.rows_per_unit, self.dataset, self.ledger = unit, rows_per_unit, dataset, ledger
        self.rules = rules

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters.

        Parameters
        ----------
        deep : bool
            Not used: no parameter is an estimator.

        Returns
        -------
        dict of str to object

        Examples
        --------
        >>> dp.Synthesizer(domain, epsilon=1.0).get_params()["degree"]
        3
        """
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: an estimator of tables of categories without a target."""
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(two_d_array=True, categorical=True, string=True, allow_nan=True)
        return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=inputs)

    def set_params(self, **parameters: Any) -> Self:
        """Change parameters; a fit is not changed.

        Parameters
        ----------
        **parameters
            Values by name.

        Returns
        -------
        Synthesizer
            The object itself.

        Raises
        ------
        JobError
            If a name is unknown.

        Examples
        --------
        >>> dp.Synthesizer(domain, epsilon=1.0).set_params(degree=2).degree
        2
        """
        known = self.get_params()
        if unknown := [name for name in parameters if name not in known]:
            raise JobError("Synthesizer", f"the parameter {unknown[0]!r}", ", ".join(known), "leave it out")
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def plan(self) -> ReleasePlan:
        """Return the plan of a fit; reads no data and spends nothing.

        Returns
        -------
        ReleasePlan

        Raises
        ------
        JobError
            If a parameter is invalid.

        Examples
        --------
        >>> dp.Synthesizer(domain, epsilon=1.0).plan().protects
        'one row'
        """
        if not isinstance(self.domain, Domain):
            raise JobError("Synthesizer.domain", type_of_value(self.domain), "a Domain", "write dp.Domain(a=3)")
        degree = min(self.degree, len(self.domain)) if isinstance(self.degree, int) else self.degree
        queries = Workload(self.domain.with_rules(self.rules)).add(MARGINAL.name, degree=degree)
        if self.target is not None:
            queries.add_target(self.target)
        made = plan(queries, mechanism=self.mechanism, epsilon=self.epsilon, delta=self.delta, unit=self.unit,
                    rows_per_unit=self.rows_per_unit, dataset=self.dataset, ledger=self.ledger,
                    **self._options(degree))  # fmt: skip
        assert isinstance(made, ReleasePlan)
        return made

    def _options(self, degree: int) -> dict[str, Any]:
        """Return the options of the mechanism, with the degree of its largest candidates.

        `degree` is the largest number of attributes of a requested set; the option is between LEAST_DEGREE and
        MOST_DEGREE. A stated degree stays. It is left out if the mechanism lacks it, or if the option `published` is
        set.
        """
        stated = dict(self.options or {})
        named = self.mechanism in mechanism_names()
        known = mechanism_named(self.mechanism).Options.model_fields if named else {}
        if "degree" in known and not stated.get("published"):
            stated.setdefault("degree", min(max(degree, LEAST_DEGREE), MOST_DEGREE))
        return stated

    def fit(self, X: Any, y: None = None, *, progress: Progress | None = lines) -> Self:  # noqa: N803
        """Release the marginals of the data, which is charged; the same data and parameters are released once.

        Parameters
        ----------
        X : DataFrame, Arrow data, str or Path
            Data as for `run`.
        y : None
            Not used.
        progress : callable, optional
            As of `run`.

        Returns
        -------
        Synthesizer
            The object itself.

        Raises
        ------
        JobError, DomainError, DataError, PlanError, BudgetError
            As of `run`.

        Examples
        --------
        >>> dp.Synthesizer(domain, epsilon=1.0, degree=2).fit(trips).release_.path.is_dir()
        True
        """
        callback = shown(progress)
        self.release_ = run(self.plan(), data=X, progress=callback)
        return self

    def sample(
        self,
        n: int | None = None,
        given: Mapping[str, Any] | None = None,
        random_state: int | None = None,
        *,
        num_rows: int | None = None,
        progress: Progress | None = lines,
    ) -> DataFrame:
        """Return synthetic rows; costs nothing.

        Rows of one number, one condition and one state are the same rows. With the mechanisms `aim-pgm` and `mst` rows
        are drawn from their distribution given the values; those of other mechanisms are selected from a larger table.

        Parameters
        ----------
        n : int, optional
            Number of rows. Default: about the number of records, as released, with the given values.
        given : mapping of str to object or list of objects, optional
            Label of a cell, or several, that all rows have, by attribute.
        random_state : int, optional
            Number of another draw.
        num_rows : int, optional
            Another name of `n`, that of SDV.
        progress : callable, optional
            As of `run`; not called for rows with given values or of another state.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        JobError
            If there was no fit, or an argument is invalid.
        PlanError
            If no estimated record has the given values, or too few for rows to be selected.

        Examples
        --------
        >>> fitted = dp.Synthesizer(domain, epsilon=1.0, degree=2).fit(trips)
        >>> len(fitted.sample(100))
        100
        >>> set(fitted.sample(100, given={"borough": "Bronx"})["borough"])
        {'Bronx'}
        """
        if not hasattr(self, "release_"):
            raise JobError("Synthesizer.sample", "no release", "a fitted synthesizer", "call fit first")
        if n is not None and num_rows is not None:
            raise JobError("Synthesizer.sample.num_rows", "given together with n", "one of them", "leave one out")
        n = num_rows if n is None else n
        if random_state is not None and (isinstance(random_state, bool) or not isinstance(random_state, int)):
            raise JobError("Synthesizer.sample.random_state", safe_repr(random_state), "a whole number", "leave it out")
        callback, opened = shown(progress), open_run(self.release_.path)
        if given or random_state is not None:
            cells = evidence_of(opened.table.domain, given or {})
            drawn = conditional_rows(opened.table, n, cells, random_state)
            return drawn.to_pandas(types_mapper=frame_type)
        request_rows(opened.table, max(1, round(self.release_.total().estimate)) if n is None else n)
        run_stages(opened, progress=callback, only="synthesize")
        rows = Release(opened).synthetic()
        assert not isinstance(rows, dict)
        return rows.compute(scheduler="threads")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items() if name != "domain")
        return f"Synthesizer({self.domain!r}, {shown})"
