# Many attributes and a small budget: `aim-grem` selects what to measure, and synthetic rows are drawn from it.
# Runs from top to bottom as a script, or cell by cell (`# %%`) in an editor or Jupyter. It makes its own data.

# %%
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

import dpscale as dp

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dpscale-adaptive-example")
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## Data: a survey of 10,000 persons, twelve answers. Some depend on each other, most do not; which ones is unknown

# %%
rng = np.random.default_rng(2)
rows, sizes = 10_000, [2, 3, 4, 5, 6, 2, 3, 4, 5, 6, 2, 3]
mood = rng.random(rows)
columns = {}
for k, size in enumerate(sizes):
    follows = rng.random(rows) < (0.7 if k % 3 == 0 else 0.1)
    columns[f"q{k + 1}"] = np.minimum((np.where(follows, mood, rng.random(rows)) ** 2 * size).astype(int), size - 1)
survey = pd.DataFrame(columns)

# %%
(folder / "survey.domain.toml").write_text(
    "\n".join(f'[attributes.q{k + 1}]\nkind = "coded"\nsize = {size}' for k, size in enumerate(sizes))
)
job = {
    "data": {"domain": str(folder.resolve() / "survey.domain.toml")},
    "privacy": {"epsilon": 0.5, "delta": 1e-9, "dataset": "survey", "ledger": str(folder.resolve() / "ledger.sqlite")},
    "workload": [{"family": "marginal", "degree": 3}],
    "mechanism": {"name": "aim-grem"},
    "synthesize": {"rows": 10_000},
}
release = dp.run(job, folder / "run", data=survey)

# %% [markdown]
# ## The selections, round by round: a public record

# %%
trace = pd.read_parquet(folder / "run" / "trace.parquet")
print(trace[["round", "attributes", "privacy_cost", "moved", "expected_noise"]].head(12).to_string())

# %% [markdown]
# ## Synthetic rows: any number, at no further cost, in the format of the survey

# %%
made = release.synthetic().compute()
print(made.head())
print(f"correlation of q1 and q4 in the rows: {made.q1.corr(made.q4):.2f}")

# %% [markdown]
# ## Accuracy. This comparison is permitted only because the data are made up (real data: `dpscale compare`, private)


# %%
def pair_distance(names: tuple[str, str]) -> float:
    """Return half the sum of differences between shares of cells: the share of rows that would have to change."""
    names = list(names)
    true, rows_ = (frame.groupby(names).size() / len(frame) for frame in (survey, made))
    return float(true.sub(rows_, fill_value=0).abs().sum() / 2)


pairs = list(combinations(survey.columns, 2))
print(f"off in pairs, on average: {np.mean([pair_distance(pair) for pair in pairs]):.1%} of rows, at ε = 0.5")
