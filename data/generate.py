"""A seeded generator of big tables: Zipf-like columns with correlations, written chunk by chunk as Parquet.

Every row draws a hidden number in [0, 1); a column follows it with probability `follow` and is independent otherwise,
and its value is Zipf-like in either case. Chunk c of a seed always has the same rows, so that tables can be generated
in parts.

    python data/generate.py OUT --rows 1000000 --attributes 20 --sizes 2,4,10,50
    python data/generate.py OUT --rows 50000 --domain data/schemas/adult.toml
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CHUNK = 1 << 18


def repeat_sizes(attributes: int, sizes: list[int]) -> list[int]:
    """Return the sizes repeated over the attributes."""
    return [sizes[i % len(sizes)] for i in range(attributes)]


def zipf(uniform: np.ndarray, size: int, exponent: float) -> np.ndarray:
    """Return values 0 … size−1 with probability ∝ 1/(value+1)^exponent, from uniform numbers."""
    weights = 1 / np.arange(1, size + 1) ** exponent
    edges = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(edges, uniform, side="right"), size - 1)


def read_schema(path: Path) -> dict[str, int]:
    """Return the sizes of the attributes of a domain file, which are all coded."""
    return {name: one["size"] for name, one in tomllib.loads(path.read_text())["attributes"].items()}


def chunk(number: int, rows: int, sizes: dict[str, int], seed: int, exponent: float, follow: float) -> pa.Table:
    """Return chunk `number` of the table, of at most CHUNK rows."""
    random = np.random.default_rng([seed, number])
    hidden = random.random(CHUNK)
    columns = {}
    for name, size in sizes.items():
        own, follows = random.random(CHUNK), random.random(CHUNK) < follow
        values = zipf(np.where(follows, hidden, own), size, exponent)
        columns[name] = pa.array(values[:rows].astype(np.uint8 if size <= 256 else np.uint16))
    return pa.table(columns)


def generate(
    out: Path, rows: int, sizes: dict[str, int], seed: int, files: int, exponent: float, follow: float
) -> None:
    """Write the table into out/table, and its domain file."""
    (out / "table").mkdir(parents=True, exist_ok=True)
    chunks = [(c, min(CHUNK, rows - c * CHUNK)) for c in range(-(-rows // CHUNK))]
    for file, mine in enumerate(np.array_split(np.arange(len(chunks)), min(files, len(chunks)))):
        path, writer = out / "table" / f"part-{file:05d}.parquet", None
        for index in mine:
            table = chunk(*chunks[index], sizes, seed, exponent, follow)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer:
            writer.close()
    tables = (f'[attributes.{name}]\nkind = "coded"\nsize = {size}\n' for name, size in sizes.items())
    (out / "domain.toml").write_text("\n".join(tables))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--attributes", type=int, default=20)
    parser.add_argument("--sizes", default="2,4,10,50", help="sizes, repeated over the attributes")
    parser.add_argument(
        "--domain", type=Path, help="domain file of coded attributes, instead of --attributes and --sizes"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--exponent", type=float, default=1.1)
    parser.add_argument("--follow", type=float, default=0.5)
    given = parser.parse_args()
    listed = repeat_sizes(given.attributes, [int(size) for size in given.sizes.split(",")])
    sizes = read_schema(given.domain) if given.domain else {f"x{i:02d}": size for i, size in enumerate(listed)}
    generate(given.out, given.rows, sizes, given.seed, given.files, given.exponent, given.follow)


if __name__ == "__main__":
    main()
