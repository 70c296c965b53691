"""Questions of an evaluation of differential privacy (after NIST SP 800-226), answered from the files of a bundle.

The answers are a function of the other files, so that an edited answer contradicts them. Only the standard library; the
module is included in every bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Fields = dict[str, Any]
Answers = Iterable[tuple[str, str, str]]
NEIGHBOURS = {
    "add/remove": "one has one unit more (add or remove); the number of rows is private",
    "replace": "one row of a table is replaced, with its links; the numbers of rows are private",
}
INSTALLED = "as it was installed; `selftest.json` has the audit of that installation"


def answers(files: Mapping[str, Any]) -> list[Fields]:
    """Return a row for each question: topic, question, answer; and the part, if the answers of parts differ.

    Parameters
    ----------
    files : mapping
        Contents of the JSON files of a bundle, by name.
    """
    parts, records = files["parts"], files["records"]["records"]
    whole = [*_guarantee(files), *_mechanism(files), *_composition(files), *_hazards(files)]
    rows: list[Fields] = [{"topic": topic, "question": question, "answer": answer} for topic, question, answer in whole]
    for name, part in sorted(parts.items()):
        part_records = [record for record in records if record["part"] == name]
        for topic, question, answer in _of_part(part, part_records):
            rows.append({"part": name, "topic": topic, "question": question, "answer": answer})
    return rows


def _guarantee(files: Mapping[str, Any]) -> Answers:
    """Return (topic, question, answer) on the definition, ε and δ of the release and on the unit that it protects."""
    claim, ledger = files["claims"]["release"], files["ledger"]
    # the release's entry on the ledger
    row = next(entry for entry in ledger["releases"] if entry["release"] == files["records"]["release"])
    private = "yes" if files["claims"]["private"] else "NO: the noise follows from a seed that anybody can try"
    # a statement on which the guarantee depends, sealed with the entry
    condition = ledger.get("chain", {}).get("opened", {}).get("facts", {}).get("condition", "")
    # in a job of several tables the unit is named with its table
    column = row.get("unit") if row.get("unit_table") is None else f"{row['unit_table']}.{row['unit']}"
    within = f" in one {row['span']}" if row.get("span") else ""
    return [
        ("guarantee", "Is the release private?", private),
        ("guarantee", "Which definition?",
         "(ε, δ)-differential privacy" if claim["delta"] else "pure ε-differential privacy"),
        ("guarantee", "ε", "none" if claim["epsilon"] is None else f"{claim['epsilon']:.9g}"),
        ("guarantee", "δ", f"{claim['delta']:g}"),
        ("unit", "Whom does it protect?",
         "one row" if column is None else f"all rows with one value of the column {column!r}{within}"),
        ("unit", "Which tables are neighbours?", NEIGHBOURS.get(row.get("relation"), "not stated") + condition),
    ]  # fmt: skip


def _mechanism(files: Mapping[str, Any]) -> Answers:
    """Return (topic, question, answer) on bounded values, the domain and the source of randomness."""
    limits = (
        "every attribute has declared cells; a value outside is refused, clipped, dropped or a category, row by row"
    )
    searched = any("threshold" in record or record["entry"] == "-domain" for record in files["records"]["records"])
    domain = "it is declared in a file and never read off the records"
    found_cells = "it is declared in a file, but for cells that were found by measurements: records.json"
    source = "256 bits of the operating system"
    return [
        ("mechanism", "How are values bounded?", f"{limits} (domain.toml, or domain.NAME.toml)"),
        ("mechanism", "Is the domain public?", found_cells if searched else domain),
        ("sampling", "How is noise drawn?", f"exactly, from ChaCha20 keyed by HMAC-SHA256; {INSTALLED}"),
        ("sampling", "Where does the randomness come from?",
         source if files["claims"]["private"] else "a seed in the job file: for tests only"),
        ("sampling", "Can a failure draw twice?", "no: a draw is a function of the secret and of what is measured"),
        ("floating point", "Does it touch the noise?", "no: integers until the noise is in, floats after it"),
    ]  # fmt: skip


def _composition(files: Mapping[str, Any]) -> Answers:
    """Return (topic, question, answer) on what the ledger charged and on the caps of the dataset."""
    whole, ledger = files["claims"]["dataset"], files["ledger"]
    total = "unbounded" if whole["epsilon"] is None else f"ε = {whole['epsilon']:.9g} at δ = {whole['delta']:g}"
    limits = [f"ε = {cap['epsilon']:g} at δ = {cap['delta']:g}{f' for each {period} of the data' if period else ''}"
              for period, cap in caps_in_force(ledger).items()]  # fmt: skip
    return [
        ("accounting", "What was charged, and when?", "the whole cost, before the first draw; there is no refund"),
        ("accounting", "How many releases of this dataset?", str(len(ledger["releases"]))),
        ("accounting", "What do they come to?", total),
        ("accounting", "Is there a cap?", "; ".join(limits) or "none: the ledger records and refuses nothing"),
        ("accounting", "Who checks?", "recompute.py, from integers; with dp-accounting where it is installed"),
    ]


def caps_in_force(ledger: Fields) -> dict[str, Fields]:
    """Return the caps in force by the period by which they renew; "" for the total."""
    caps = {"": ledger.get("cap")} | {cap["period"]: cap for cap in ledger.get("period_caps", ())}
    return {period: caps[period] for period in ("", "month", "year") if caps.get(period)}


def _of_part(part: Fields, records: list[Fields]) -> Answers:
    """Return (topic, question, answer) on one part of the release: contribution of a unit, mechanism, rows of a matrix.

    Records with a "range" are selections by the exponential mechanism, all others draws of noise.
    """
    selections = sum(int(record["count"]) for record in records if "range" in record)
    drawn = sum("range" not in record for record in records)
    choices = f"; {selections} selections by the exponential mechanism, on whole scores" if selections else ""
    noise = f"{drawn} measurements, discrete {part['law'].capitalize()} noise on whole numbers{choices}"
    rows = [
        ("unit", "How much may one unit contribute?", part["contribution"]),
        ("mechanism", "Which one?", f"{part['mechanism']}: {noise}"),
        ("mechanism", "How is sensitivity bounded?", part["sensitivity"]),
        ("post-processing", "What follows the noise?", part["post_processing"]),
    ]
    if (outer := part.get("outer")) is not None:
        known = len({record["row"] for record in records})
        text = f"all {len(outer['names'])} rows of the matrix in parts.json, to a unit in at most {outer['together']}"
        rows.append(("accounting", "What does the charge cover?", f"{text}; {known} rows are drawn"))
        rows.append(("public", "What is taken as public about the rows?",
                      "that their records have arrived; which are released"))  # fmt: skip
    return rows


def _hazards(files: Mapping[str, Any]) -> Answers:
    """Return (topic, question, answer) on secrets, side channels and what is trusted or public."""
    unit_rows = "a refused value tells one bit before the charge; clip, drop or category tell none"
    return [
        ("secrets", "What became of the secret of the noise?", files["versions"]["secret"]),
        ("secrets", "Is it in logs, tasks or manifests?", "no: a file of its owner alone, while noise is drawn"),
        ("side channels", "Timing, memory, progress", "NOT protected: they depend on the data"),
        ("side channels", "Refusals", unit_rows),
        ("public", "What is taken as public?",
         "job, domain, rules between attributes; number, size, names and times of change of data files"),
        ("data", "Who sees records?",
         "the curator's machines while they count; records leave them in no message or file"),
        ("data", "How were the data collected and kept?", "outside this package: for the curator to say"),
        ("trust", "Who is trusted?", "the curator (central model), machines, ledger; readers of the release are not"),
        ("trust", "Against whom is the ledger no guard?", "its owner: another ledger or name starts a new account"),
        ("utility", "Are errors told?", "the answers have standard errors where they follow from the noise"),
    ]  # fmt: skip
