# A census: households are protected, tables by region and age, cumulative incomes, and counts for print.
# Runs from top to bottom as a script, or cell by cell (`# %%`) in an editor or Jupyter. It makes its own data.

# %%
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import dpscale as dp

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dpscale-census-example")
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## Data: 8,000 households in twelve municipalities

# %%
rng = np.random.default_rng(1)
households = 8_000
size = 1 + rng.poisson(1.3, households).clip(0, 7)
place = rng.choice(12, households, p=rng.dirichlet(np.full(12, 3.0)))
home = np.repeat(np.arange(households), size)
first = np.r_[True, np.diff(home) > 0]
age = np.where(first, rng.normal(50, 17, len(home)), rng.normal(30, 22, len(home))).clip(0, 100).astype(int)
persons = pd.DataFrame(
    {
        "household": home,
        "municipality": [f"M{k:02d}" for k in place[home]],
        "age": age,
        "sex": rng.choice(["F", "M"], len(home), p=[0.51, 0.49]),
        "works": (age > 16) & (age < 67) & (rng.random(len(home)) < 0.75),
        "income": np.where(age < 16, np.nan, rng.lognormal(10.1, 0.6, len(home)).round()),
    }
)
persons.to_parquet(folder / "persons.parquet", index=False)

# %% [markdown]
# ## Public metadata: codes, regions, bounds. They are not derived from the data

# %%
regions = "\n".join(f'R{r} = ["M{3 * r:02d}", "M{3 * r + 1:02d}", "M{3 * r + 2:02d}"]' for r in range(4))
(folder / "persons.domain.toml").write_text(f"""
[attributes.municipality]
kind = "categories"
values = {[f"M{k:02d}" for k in range(12)]}
[attributes.municipality.parent.region]
{regions}

[attributes.age]
kind = "bins"
edges = [0, 6, 16, 25, 35, 45, 55, 65, 75, 100]
outside = "clip"

[attributes.sex]
kind = "categories"
values = ["F", "M"]

[attributes.works]
kind = "boolean"

[attributes.income]
kind = "bins"
edges = [0, 5000, 10000, 15000, 20000, 25000, 30000, 40000, 60000, 100000]
outside = "clip"
nulls = "category"
""")

# %% [markdown]
# ## The workload. One unit is a household of up to six persons; a seventh would be dropped

# %%
job = folder / "job.toml"
job.write_text("""
[data]
path = "persons.parquet"
domain = "persons.domain.toml"
privacy_unit = "household"
max_rows_per_unit = 6

[privacy]
epsilon = 3.0
delta = 1e-9
dataset = "census-example"

[[workload]]
family = "marginal"
attributes = [["region", "age", "sex"], ["municipality", "sex"], ["region", "works"]]
weight = 2.0

[[workload]]
family = "prefix"
attributes = [["income"]]
""")

# %% [markdown]
# `dpscale plan JOB` would print the expected errors without reading any data. This run measures and is charged

# %%
release = dp.run(job, folder / "run")
print(release.total())
print(release.table(["region", "sex"]))
print("median income:", release.quantile("income", 0.5))

# %% [markdown]
# ## Accuracy. This comparison is permitted only because the data are made up

# %%
table = release.table(["municipality", "sex"])
truth = (
    persons.groupby(["municipality", "sex"]).size().reindex(pd.MultiIndex.from_frame(table[["municipality", "sex"]]))
)
inside = np.mean((table.low.to_numpy() <= truth) & (truth <= table.high.to_numpy()))
print(
    f"{inside:.0%} of the true counts are in their 95 % intervals; typical error {table.std_error.mean():.0f} persons"
)

# %% [markdown]
# ## Consistent integer counts for publication: `dpscale publish` does the same from a shell

# %%
words = ["publish", str(folder / "run"), "--set", "region,age,sex", "--out", str(folder / "press")]
subprocess.run([sys.executable, "-m", "dpscale", *words], check=True)
print((folder / "press" / "README.txt").read_text())
