"""A generated hospital: patients, their encounters with doctors, and diagnoses with codes of a hierarchy like ICD-10:

    python pipelines/hospital.py [--rows N] [--compare]

A patient is protected with all encounters and diagnoses. Doctors are private, too, but a doctor has any number of
encounters: `unit = "patients"` in the job makes their table a side table. The job asks for answers across links, such
as diagnoses by sex, with exact standard errors, and releases all tables with keys, and encounters in order.
The codes are a public hierarchy of chapters, blocks and codes, which this script writes with the data.
`python pipelines/steps.py JOB RUN_DIR` and the DAG `dpscale` of `airflow_dag.py` run the same job, one task per stage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from databases import Rows, Tables, main

PATIENTS, DOCTORS, MOST_ENCOUNTERS = 4000, 60, 8
SPECIALTIES = ("medicine", "surgery", "pediatrics", "cardiology")
KINDS, SAME_KIND = ("emergency", "inpatient", "outpatient"), 0.6
CHAPTERS = ("A", "C", "I", "S")  # infections, neoplasms, circulation, injuries
BLOCKS, CODES = 3, 4  # of a chapter, and of a block


def codes() -> Rows:
    """Return the public hierarchy: a row for each code with its chapter and its block."""
    return [{"chapter": chapter, "block": f"{chapter}{block}", "code": f"{chapter}{block}.{code}"}
            for chapter in CHAPTERS for block in range(BLOCKS) for code in range(CODES)]  # fmt: skip


def prepare(source: Path, rows: int | None = None) -> Tables:
    """Return generated tables with so many patients; the source is not read."""
    rng, count = np.random.default_rng(0), rows or PATIENTS
    age, sex = rng.integers(0, 95, count), rng.choice(["F", "M"], count)
    patients = [{"patient": f"P{i}", "age": int(age[i]), "sex": str(sex[i])} for i in range(count)]
    doctors = [{"doctor": f"D{i}", "specialty": SPECIALTIES[i % len(SPECIALTIES)], "senior": bool(i % 3 == 0)}
               for i in range(DOCTORS)]  # fmt: skip
    visits = np.repeat(np.arange(count), np.minimum(rng.poisson(0.5 + age / 30), MOST_ENCOUNTERS))
    encounters: Rows = []
    diagnoses: Rows = []
    months, kind = rng.integers(1, 13, len(visits)), ""
    months = months[np.lexsort((months, visits))]
    for number, patient in enumerate(visits.tolist()):
        again = number > 0 and visits[number - 1] == patient and rng.random() < SAME_KIND
        kind = kind if again else str(rng.choice(KINDS))
        specialty = _specialty(rng, int(age[patient]))
        doctor = int(rng.integers(0, DOCTORS // len(SPECIALTIES))) * len(SPECIALTIES) + specialty
        encounters.append({"encounter": number, "patient": f"P{patient}", "doctor": f"D{doctor}",
                           "month": int(months[number]), "kind": kind})  # fmt: skip
        diagnoses += _diagnoses(rng, number, specialty, str(sex[patient]))
    return {"patients": patients, "doctors": doctors, "encounters": encounters, "diagnoses": diagnoses,
            "codes": codes()}  # fmt: skip


def _specialty(rng: np.random.Generator, age: int) -> int:
    """Return the number of a specialty: children see pediatricians, and old patients more cardiologists."""
    if age < 16:
        return 2
    heart = 0.1 + 0.4 * age / 95
    return int(rng.choice([0, 1, 3], p=[(1 - heart) / 2, (1 - heart) / 2, heart]))


def _diagnoses(rng: np.random.Generator, encounter: int, specialty: int, sex: str) -> list[dict[str, Any]]:
    """Return one to three diagnoses, whose chapters depend on the specialty and the blocks on the sex."""
    weights = np.ones(len(CHAPTERS))
    weights[[1, 3, 0, 2][specialty]] += 6
    found = []
    for rank in range(int(rng.integers(1, 4))):
        chapter = int(rng.choice(len(CHAPTERS), p=weights / weights.sum()))
        block = int(rng.choice(BLOCKS, p=[0.6, 0.3, 0.1] if sex == "F" else [0.2, 0.3, 0.5]))
        code = f"{CHAPTERS[chapter]}{block}.{rng.integers(0, CODES)}"
        found.append({"encounter": encounter, "code": code, "main": rank == 0})
    return found


if __name__ == "__main__":
    main("hospital", ("job",), prepare, generated=True)
