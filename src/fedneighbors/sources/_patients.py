"""Patients as rows of age, sex and diagnoses: from the OMOP Common Data Model, or FHIR resources.

The rows are those of a reference date: ages are in completed years on it, and diagnoses that began
and patients who were born after it are left out. A patient without a diagnosis has the empty set.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

from fedneighbors.datasets._files import explain_errors, open_text
from fedneighbors.datasets._object_cells import Cells
from fedneighbors.datasets._table import check_present
from fedneighbors.datasets._text_format import find_delimiter
from fedneighbors.errors import DataError, MissingDataError
from fedneighbors.sources._sql import SqlQuery

# https://ohdsi.github.io/CommonDataModel: concepts of person.gender_concept_id
_OMOP_SEX = {"8507": "M", "8532": "F", "8521": "O"}
_FHIR_SEX = {"male": "M", "female": "F", "other": "O"}
# a condition that was never there: http://hl7.org/fhir/R4/valueset-condition-ver-status.html
_UNTRUE = {"refuted", "entered-in-error"}

OMOP_CODES = {
    "concept_code": ("c.concept_code", "c.concept_name", "o.condition_concept_id"),
    "concept_id": ("o.condition_concept_id", "NULL", "o.condition_concept_id"),
    "source_value": ("o.condition_source_value", "NULL", "o.condition_source_value"),
}
"""Code and name of a diagnosis, and the cell without which there is none."""


class PatientRows:
    """Rows of patients, collected one person and one diagnosis at a time.

    Parameters
    ----------
    day : date
        Reference date.
    """

    def __init__(self, day: date) -> None:
        self._day = day
        self._persons: dict[str, tuple[int | None, str | None]] = {}
        self._codes: dict[str, dict[str, str]] = {}

    def add_person(self, patient: str, born: Iterable[Any], sex: str | None) -> None:
        """Add a person.

        Without a month of birth July counts, without a day the first.

        Raises
        ------
        DataError
            If the person is known, or a part of the birthday is no number.
        """
        try:
            year, month, day = (None if part in (None, "") else int(float(part)) for part in born)
        except (ValueError, OverflowError):
            raise DataError("expected year, month and day of birth as numbers") from None
        if not patient or patient in self._persons:
            raise DataError("expected persons with different names; one is missing or repeated")
        age = None
        if year is not None:
            is_before = (self._day.month, self._day.day) < (month or 7, day or 1)
            age = self._day.year - year - is_before
        if age is None or age >= 0:
            self._persons[patient] = age, sex

    def add_code(self, patient: str, code: str, name: str | None, start: str | None) -> None:
        """Add a diagnosis; ``start`` is a date in the ISO format."""
        first = (start or "")[:10]  # perhaps a year or a month alone
        if first <= self._day.isoformat()[: len(first)]:
            self._codes.setdefault(patient, {})[code] = name or ""

    def cells(self, source: str) -> Cells:
        """Return the columns; diagnoses of unknown persons are left out.

        Raises
        ------
        DataError
            If there are no persons.
        """
        if not self._persons:
            raise DataError(f"{source} has no persons born by {self._day}")
        names = list(self._persons)
        found = [dict(sorted(self._codes.get(name, {}).items())) for name in names]
        return {
            "patient": names,
            "age": [self._persons[name][0] for name in names],
            "sex": [self._persons[name][1] for name in names],
            "conditions": [list(own) for own in found],
            "condition_names": ["; ".join(filter(None, own.values())) or None for own in found],
        }


def read_omop(query_of: Callable[[str], SqlQuery], day: date, *, schema: str, codes: str) -> Cells:
    """Return the patients of a database in the OMOP Common Data Model.

    One query reads persons and diagnoses, so that they are of one version of the database.

    Parameters
    ----------
    query_of : callable
        Function from a SELECT to its query.
    day : date
        Reference date.
    schema : str
        Schema of the tables; empty for the default one.
    codes : {"concept_code", "concept_id", "source_value"}
        Codes of diagnoses.

    Raises
    ------
    SourceError, DataError
        If the query fails, or there are no persons.
    """
    tables = f"{schema}." if schema else ""
    code, name, required = OMOP_CODES[codes]
    concept = f"JOIN {tables}concept c ON c.concept_id = o.condition_concept_id "
    query = query_of(
        "SELECT person_id, year_of_birth, month_of_birth, day_of_birth, gender_concept_id, "
        f"CAST(NULL AS VARCHAR) AS code, CAST(NULL AS VARCHAR) AS name FROM {tables}person "
        f"UNION ALL SELECT DISTINCT o.person_id, {', '.join(['CAST(NULL AS INTEGER)'] * 4)}, "
        f"CAST({code} AS VARCHAR), CAST({name} AS VARCHAR) FROM {tables}condition_occurrence o "
        f"{concept if codes == 'concept_code' else ''}"
        f"WHERE CAST({required} AS VARCHAR) NOT IN ('0', '') "
        f"AND (o.condition_start_date IS NULL OR o.condition_start_date <= '{day.isoformat()}')"
    )
    rows, cells = PatientRows(day), query.read()
    for person, year, month, born_day, sex, found, label in zip(*cells.values(), strict=True):
        if found is None:
            rows.add_person(str(person), (year, month, born_day), _OMOP_SEX.get(str(sex)))
        else:
            rows.add_code(str(person), found, label, None)
    return rows.cells(str(query))


def read_omop_files(folder: Path, day: date, *, codes: str) -> Cells:
    """Return the patients of CSV files of the OMOP Common Data Model.

    Parameters
    ----------
    folder : path
        Folder of ``person``, ``condition_occurrence`` and, for concept codes, ``concept``, each a
        ``.csv`` or ``.csv.gz`` in upper or lower case.
    day, codes
        As for :func:`read_omop`.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If a column is missing or a cell invalid.
    """
    rows = PatientRows(day)
    born = ("year_of_birth", "month_of_birth", "day_of_birth")
    persons = _read_table(folder, "person", "person_id", "gender_concept_id", *born)
    for person, sex, *parts in persons:
        rows.add_person(person, parts, _OMOP_SEX.get(sex))
    column = "condition_source_value" if codes == "source_value" else "condition_concept_id"
    table = _read_table(folder, "condition_occurrence", "person_id", "condition_start_date", column)
    found = dict.fromkeys((*row,) for row in table if row[2] not in ("", "0"))
    names: dict[str, tuple[str, str]] = {}
    if codes == "concept_code":
        used = {code for *_, code in found}
        concepts = _read_table(folder, "concept", "concept_id", "concept_code", "concept_name")
        names = {concept: (code, name) for concept, code, name in concepts if concept in used}
    for person, start, code in found:
        if codes != "concept_code" or code in names:
            rows.add_code(person, *names.get(code, (code, "")), start)
    return rows.cells(str(folder))


def _read_table(folder: Path, name: str, *columns: str) -> Iterator[list[str]]:
    """Yield cells of some columns; vocabularies have millions of rows."""
    expected = {f"{name}.csv", f"{name}.csv.gz"}
    files = folder.iterdir() if folder.is_dir() else ()
    path = next((file for file in files if file.name.lower() in expected), None)
    if path is None:
        remedy = "; or choose other codes" * (name == "concept")
        raise MissingDataError(f"there is no file {folder / name}.csv{remedy}")
    with explain_errors(path), closing(open_text(path, newline="")) as file:
        header = file.readline().lstrip("\ufeff")
        delimiter = find_delimiter(header)
        # vocabularies have tabs, and quotes that mean nothing
        quote = None if delimiter == "\t" else '"'
        names = [cell.lower() for cell in next(csv.reader([header], delimiter=delimiter))]
        check_present(columns, names, source=str(path))
        places = [names.index(column) for column in columns]
        for cells in csv.reader(file, delimiter=delimiter, quotechar=quote):
            if len(cells) != len(names):
                raise DataError(f"{path}: expected rows of {len(names)} cells, got {len(cells)}")
            yield [cells[place] for place in places]


def read_fhir(path: Path, day: date, *, system: str = "") -> Cells:
    """Return the patients of FHIR resources (R4, JSON).

    Patients and conditions are read, others skipped; so are conditions that were refuted or entered
    in error.

    Parameters
    ----------
    path : path
        A bundle (``.json``) or a bulk export (``.ndjson``, ``.ndjson.gz``), or a folder of them.
    day : date
        Reference date.
    system : str
        Address of the coding system, such as ``http://hl7.org/fhir/sid/icd-10``; empty for all
        codings of a condition.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If a file is not JSON, or a resource is invalid.
    """
    rows = PatientRows(day)
    suffixes = (".json", ".ndjson", ".ndjson.gz")
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(suffixes))
    for file in files:
        for place, resource, patients in _read_resources(file):
            try:
                if resource.get("resourceType") == "Patient":
                    _add_patient(rows, resource)
                elif resource.get("resourceType") == "Condition":
                    _add_condition(rows, resource, patients, system=system)
            except (AttributeError, TypeError, KeyError) as error:
                raise DataError(f"{place} is no resource of FHIR R4: {error}") from None
            except DataError as error:
                raise DataError(f"{place}: {error}") from None
    return rows.cells(str(path))


Resource = dict[str, Any]


def _read_resources(file: Path) -> Iterator[tuple[str, Resource, Mapping[str, str]]]:
    """Yield places, resources, and the names of a bundle's patients."""
    with explain_errors(file), closing(open_text(file)) as stream:
        is_lines = ".ndjson" in file.name
        lines: Iterable[str] = stream if is_lines else [stream.read()]
        for number, line in enumerate(lines, start=1):
            place = f"{file}, line {number}" if is_lines else str(file)
            try:
                content = json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError):
                raise DataError(f"{place} is not JSON") from None
            if not isinstance(content, dict):
                raise DataError(f"{place}: expected a resource or a bundle")
            if content.get("resourceType") != "Bundle":
                yield place, content, {}
                continue
            entries = [one for one in content.get("entry") or () if isinstance(one, dict)]
            pairs = [(str(one.get("fullUrl", "")), one.get("resource") or {}) for one in entries]
            if not all(isinstance(resource, dict) for _, resource in pairs):
                raise DataError(f"{place}: expected entries with resources")
            patients = {
                url: str(resource.get("id") or url.rpartition(":")[2])
                for url, resource in pairs
                if url and resource.get("resourceType") == "Patient"
            }
            for position, (url, resource) in enumerate(pairs):
                yield f"{place}, entry {position}", {"id": patients.get(url), **resource}, patients


def _add_patient(rows: PatientRows, resource: Resource) -> None:
    born = str(resource.get("birthDate") or "")
    year, month, day, *_ = *born.split("-"), "", "", ""
    rows.add_person(resource["id"], (year, month, day), _FHIR_SEX.get(resource.get("gender", "")))


def _add_condition(
    rows: PatientRows, resource: Resource, patients: Mapping[str, str], *, system: str
) -> None:
    status = resource.get("verificationStatus", {}).get("coding", ())
    if not _UNTRUE.isdisjoint(coding.get("code") for coding in status):
        return
    reference = resource["subject"]["reference"]
    patient = patients.get(reference) or reference.partition("Patient/")[2].partition("/")[0]
    start = resource.get("onsetDateTime") or resource.get("onsetPeriod", {}).get("start")
    for coding in resource.get("code", {}).get("coding", ()):
        if "code" in coding and (not system or coding.get("system") == system):
            name = coding.get("display") or resource["code"].get("text")
            rows.add_code(patient, coding["code"], name, start or resource.get("recordedDate"))
