"""Patients of OMOP tables and FHIR resources as rows, and searched over hospitals.

The patients are invented. Tables and resources follow the published specifications: OMOP Common
Data Model 5.4 and FHIR R4.
"""

import csv
import gzip
import json
import sqlite3
from datetime import date

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors import FederatedNeighbors
from fedneighbors._lazy import optional_module
from fedneighbors.cli._main import app
from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema, SetColumn
from fedneighbors.errors import DataError, MissingDataError, SourceError
from fedneighbors.service import ServiceError
from fedneighbors.service._config import OfferSection, PatientsSection
from fedneighbors.service._loading import read_source, write_snapshot
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._sealed import make_sealing_key
from tests.service.deployment import deployed

ICD, SNOMED = "http://hl7.org/fhir/sid/icd-10", "http://snomed.info/sct"
DAY = date(2026, 3, 15)
CONCEPTS = {  # concept id: code, name, code in ICD-10
    320128: ("59621000", "Essential hypertension", "I10"),
    201826: ("44054006", "Type 2 diabetes mellitus", "E11.9"),
    317009: ("195967001", 'Asthma, "bronchial"', "J45"),
    4329847: ("22298006", "Myocardial infarction", "I21"),
}
SCHEMA = Schema(
    (
        NumericColumn("age", 0.0, 110.0, missing="keep"),
        CategoricalColumn("sex", ("F", "M"), missing="keep"),
        SetColumn("conditions", missing="keep", weight=2.0),
    )
)
SECTION = {"metric": "tabular", "schema": "patients.toml", "filters": {"age": "number"}}


def invent(n, seed):
    """Return invented persons and their conditions as (person, concept, start)."""
    rng = np.random.default_rng(seed)
    persons, conditions = [], []
    for number in range(n):
        month, day = int(rng.integers(1, 13)), int(rng.integers(1, 29))
        persons.append((number + 1, int(rng.integers(1930, 2026)), month, day, "FM?"[number % 3]))
        for concept in rng.choice(list(CONCEPTS), int(rng.integers(0, 4)), replace=False):
            year = int(rng.integers(2020, 2028))
            conditions.append((number + 1, int(concept), f"{year}-03-{int(rng.integers(14, 17))}"))
    return persons, [*conditions, *conditions[:5]]  # a diagnosis is often recorded twice


def expected_rows(persons, conditions, codes):
    """Return the rows of persons, by name, as the page on patients states them."""
    rows = {}
    for number, year, month, day, sex in persons:
        age = sum(1 for later in range(year + 1, 2027) if (later, month, day) <= (2026, 3, 15))
        if (year, month, day) > (2026, 3, 15):
            continue
        found = {c for person, c, start in conditions if person == number and start <= "2026-03-15"}
        rows[str(number)] = age, {"F": "F", "M": "M", "?": None}[sex], {codes[c] for c in found}
    return rows


CODES = {
    "concept_code": {concept: code for concept, (code, _, _) in CONCEPTS.items()},
    "concept_id": {concept: str(concept) for concept in CONCEPTS},
    "source_value": {concept: icd for concept, (_, _, icd) in CONCEPTS.items()},
}
TABLES = {
    "person": "person_id gender_concept_id year_of_birth month_of_birth day_of_birth",
    "condition_occurrence": "condition_occurrence_id person_id condition_concept_id "
    "condition_start_date condition_source_value",
    "concept": "concept_id concept_name vocabulary_id concept_code",
}


def make_tables(persons, conditions):
    sexes = {"F": 8532, "M": 8507, "?": 0}
    return {
        "person": [(number, sexes[sex], *born) for number, *born, sex in persons],
        "condition_occurrence": [
            *((i, p, c, start, CONCEPTS[c][2]) for i, (p, c, start) in enumerate(conditions)),
            (10_000, 1, 0, "2020-01-01", ""),  # no matching concept
        ],
        "concept": [(number, name, "SNOMED", code) for number, (code, name, _) in CONCEPTS.items()],
    }


def write_csv(folder, persons, conditions):
    (folder / "cdm").mkdir()
    for name, rows in make_tables(persons, conditions).items():
        with (folder / "cdm" / f"{name.upper()}.csv").open("w", newline="") as file:
            # vocabularies come with tabs and without quotes
            is_concept = name == "concept"
            style = {"delimiter": "\t", "quotechar": None} if is_concept else {}
            quoting = csv.QUOTE_NONE if is_concept else csv.QUOTE_MINIMAL
            csv.writer(file, quoting=quoting, **style).writerows([TABLES[name].split(), *rows])
    return {"kind": "omop", "file": "cdm"}


def fill(execute, persons, conditions, mark, prefix=""):
    for name, rows in make_tables(persons, conditions).items():
        types = [
            f"{column} {'date' if column.endswith('date') else kind}"
            for column, kind in zip(
                TABLES[name].split(),
                ["text" if isinstance(cell, str) else "integer" for cell in rows[0]],
                strict=True,
            )
        ]
        execute(f"CREATE TABLE {prefix}{name} ({', '.join(types)})")
        for row in rows:
            execute(f"INSERT INTO {prefix}{name} VALUES ({', '.join([mark] * len(row))})", row)


def write_sqlite(folder, persons, conditions):
    connection = sqlite3.connect(folder / "cdm.sqlite")
    fill(connection.execute, persons, conditions, "?")
    connection.commit()
    connection.close()
    return {"kind": "omop", "database": "sqlite:cdm.sqlite"}


def write_duckdb(folder, persons, conditions):
    duckdb = optional_module("duckdb", "sql")
    with duckdb.connect(str(folder / "clinic.duckdb")) as connection:
        connection.execute("CREATE SCHEMA cdm")
        fill(connection.execute, persons, conditions, "?", "cdm.")
    return {"kind": "omop", "database": "duckdb:clinic.duckdb", "cdm_schema": "cdm"}


def make_resources(persons, conditions):
    genders = {"F": "female", "M": "male", "?": "unknown"}
    for number, year, month, day, sex in persons:
        born = f"{year}-{month:02}-{day:02}"
        yield {
            "resourceType": "Patient",
            "id": str(number),
            "gender": genders[sex],
            "birthDate": born,
        }
    for number, (person, concept, start) in enumerate(conditions):
        snomed, name, icd = CONCEPTS[concept]
        yield {
            "resourceType": "Condition",
            "id": f"c{number}",
            "subject": {"reference": f"Patient/{person}"},
            "onsetDateTime": f"{start}T08:00:00Z",
            "code": {
                "coding": [
                    {"system": SNOMED, "code": snomed, "display": name},
                    {"system": ICD, "code": icd},
                ],
                "text": name,
            },
        }


def write_bundle(folder, persons, conditions):
    resources = list(make_resources(persons, conditions))[::-1]  # conditions come first
    entries = [{"fullUrl": f"https://x.example/{one['id']}", "resource": one} for one in resources]
    bundle = {"resourceType": "Bundle", "type": "collection", "entry": entries}
    (folder / "bundle.json").write_text(json.dumps(bundle), encoding="utf-8")
    return {"kind": "fhir", "file": "bundle.json", "system": ICD}


def write_export(folder, persons, conditions):
    (folder / "export").mkdir()
    resources = list(make_resources(persons, conditions))
    for kind in ("Patient", "Condition"):
        lines = [json.dumps(one) + "\n" for one in resources if one["resourceType"] == kind]
        with gzip.open(folder / f"export/{kind}.ndjson.gz", "wt", encoding="utf-8") as file:
            file.writelines(lines)
    return {"kind": "fhir", "file": "export", "system": SNOMED}


def make_section(source, **changes):
    content = {**SECTION, "source": {"reference_date": DAY, **source}, **changes}
    return OfferSection.model_validate(content)


def read(folder, source, **changes):
    """Return the rows of a source by name, and its payload."""
    section = make_section(source, filters={}, **changes)
    content = read_source(section, section.source, folder, lambda _: None, SCHEMA)
    rows = {}
    for name, row in zip(content.ids, content.items, strict=True):
        sex = {0.0: "F", 1.0: "M"}.get(row.cells[1])
        rows[name] = round(float(row.cells[0] * 110)), sex, set(row.sets[0])
    return rows, content


WRITERS = {
    "csv": (write_csv, "concept_code"),
    "sqlite": (write_sqlite, "concept_code"),
    "duckdb": (write_duckdb, "concept_code"),
    "bundle": (write_bundle, "source_value"),
    "export": (write_export, "concept_code"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_patients_become_rows_of_the_reference_date(tmp_path, writer):
    write, codes = WRITERS[writer]
    persons, conditions = invent(60, seed=0)
    source = write(tmp_path, persons, conditions)

    rows, content = read(tmp_path, source, policy={"payload": ["condition_names"]})

    assert rows == expected_rows(persons, conditions, CODES[codes])
    assert content.ids == sorted(content.ids)
    names = content.payload["condition_names"]
    assert (None in names, any("Asthma, " in (own or "") for own in names)) == (True, True)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("writer", ["csv", "sqlite", "duckdb"])
def test_codes_of_omop_can_be_chosen(tmp_path, writer, codes):
    persons, conditions = invent(20, seed=1)
    source = WRITERS[writer][0](tmp_path, persons, conditions)

    rows, _ = read(tmp_path, {**source, "codes": codes})

    assert rows == expected_rows(persons, conditions, CODES[codes])


def test_patients_of_postgresql_become_rows(tmp_path, postgres):
    persons, conditions = invent(30, seed=2)
    name = postgres.new_database("CREATE SCHEMA cdm")
    with postgres.connect(name) as connection:
        fill(connection.execute, persons, conditions, "%s", "cdm.")

    rows, _ = read(tmp_path, {"kind": "omop", "database": postgres.url(name), "cdm_schema": "cdm"})

    assert rows == expected_rows(persons, conditions, CODES["concept_code"])


def write_one(folder, person, condition="1,1,320128,2020-01-01,I10"):
    (folder / "person.csv").write_text(f"{TABLES['person'].replace(' ', ',')}\n{person}\n")
    header = TABLES["condition_occurrence"].replace(" ", ",")
    (folder / "condition_occurrence.csv").write_text(f"{header}\n{condition}\n")
    return {"kind": "omop", "file": ".", "codes": "concept_id"}


@pytest.mark.parametrize(
    ("born", "age"),
    [
        ("1950,3,15", 76),  # the birthday itself
        ("1950,3,16", 75),
        ("1950,,", 75),  # July counts
        ("1950,3,", 76),  # the first of the month counts
        ("1950.0,3.0,15.0", 76),
        (",,", None),
    ],
)
def test_ages_are_completed_years(tmp_path, born, age):
    source = write_one(tmp_path, f"1,8532,{born}")
    section = make_section(source, filters={})

    content = read_source(section, section.source, tmp_path, lambda _: None, SCHEMA)

    cell = content.items[0].cells[0]
    assert np.isnan(cell) if age is None else cell == age / 110
    assert content.items[0].sets == (frozenset({"320128"}),)


def test_a_patient_without_diagnoses_has_the_empty_set(tmp_path):
    source = write_one(tmp_path, "1,8532,1950,1,1", "1,2,320128,2020-01-01,I10")
    section = make_section(source, filters={})

    (row,) = read_source(section, section.source, tmp_path, lambda _: None, SCHEMA).items

    assert (row.cells[2], row.sets) == (0.0, (frozenset(),))


def bundle(*resources, **urls):
    entries = [{"resource": one} for one in resources]
    entries += [{"fullUrl": f"urn:uuid:{url}", "resource": one} for url, one in urls.items()]
    return {"resourceType": "Bundle", "type": "transaction", "entry": entries}


PATIENT = {"resourceType": "Patient", "id": "p", "gender": "male", "birthDate": "1990"}
CONDITION = {
    "resourceType": "Condition",
    "subject": {"reference": "Patient/p"},
    "code": {"coding": [{"system": ICD, "code": "I10"}]},
}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (bundle(PATIENT, CONDITION), {"p": (35, "M", {"I10"})}),
        (bundle(PATIENT, {**CONDITION, "onsetDateTime": "2027"}), {"p": (35, "M", set())}),
        (
            bundle(PATIENT, {**CONDITION, "onsetPeriod": {"start": "2026-03"}}),
            {"p": (35, "M", {"I10"})},
        ),
        (
            bundle(PATIENT, {**CONDITION, "verificationStatus": {"coding": [{"code": "refuted"}]}}),
            {"p": (35, "M", set())},
        ),
        (
            bundle(
                {**CONDITION, "subject": {"reference": "urn:uuid:ab"}},
                {"resourceType": "Observation"},
                ab={key: cell for key, cell in PATIENT.items() if key != "id"},
            ),
            {"ab": (35, "M", {"I10"})},
        ),
        (
            bundle(
                PATIENT,
                {**CONDITION, "subject": {"reference": "http://x/fhir/Patient/p/_history/1"}},
            ),
            {"p": (35, "M", {"I10"})},
        ),
        ({**PATIENT, "gender": "other"}, {"p": (35, None, set())}),
    ],
    ids=["id", "later", "month", "refuted", "uuid", "url", "single"],
)
def test_resources_of_fhir_are_read(tmp_path, content, expected):
    (tmp_path / "a.json").write_text(json.dumps(content), encoding="utf-8")

    rows, _ = read(tmp_path, {"kind": "fhir", "file": "a.json"})

    assert rows == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "a.json is not JSON"),
        ("[]", "expected a resource or a bundle"),
        (json.dumps(bundle(PATIENT, PATIENT)), "entry 1: expected persons with different names"),
        (json.dumps(bundle(PATIENT, {**CONDITION, "subject": {}})), "no resource of FHIR R4"),
        (json.dumps(bundle({**PATIENT, "birthDate": "about 1990"})), "year, month and day"),
        (json.dumps(bundle("x")), "expected entries with resources"),
        (json.dumps(bundle(CONDITION)), "has no persons born by 2026-03-15"),
    ],
)
def test_wrong_resources_are_refused(tmp_path, text, words):
    (tmp_path / "a.json").write_text(text, encoding="utf-8")

    with pytest.raises(DataError, match=words):
        read(tmp_path, {"kind": "fhir", "file": "a.json"})


def test_missing_tables_and_columns_are_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"there is no file .*person\.csv"):
        read(tmp_path, {"kind": "omop", "file": "."})
    source = write_one(tmp_path, "1,8532,1950,1,1")
    with pytest.raises(MissingDataError, match=r"concept\.csv; or choose other codes"):
        read(tmp_path, {**source, "codes": "concept_code"})
    (tmp_path / "person.csv").write_text("person_id,year_of_birth\n1,1950\n")
    with pytest.raises(DataError, match="gender_concept_id"):
        read(tmp_path, source)
    sqlite3.connect(tmp_path / "empty.sqlite").close()
    with pytest.raises(SourceError, match="no such table"):
        read(tmp_path, {"kind": "omop", "database": "sqlite:empty.sqlite"})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"kind": "omop"}, "expected either file or database"),
        ({"kind": "fhir", "file": "a", "codes": "concept_id"}, "'fhir' has no key 'codes'"),
        ({"kind": "omop", "file": "a", "system": ICD}, "'omop' has no key 'system'"),
        ({"kind": "omop", "file": "a", "sql": "SELECT 1"}, "'omop' has no key 'sql'"),
        ({"kind": "omop", "file": "a", "cdm_schema": "a; DROP"}, "cdm_schema"),
        ({"kind": "omop", "database": "mysql:x"}, "expected a database postgresql"),
    ],
)
def test_wrong_settings_are_refused(source, words):
    with pytest.raises(ValueError, match=words):
        make_section(source)


def test_patients_need_the_metric_of_rows():
    with pytest.raises(ValueError, match="expected metric 'tabular'"):
        make_section({"kind": "omop", "file": "a"}, metric="jaccard", schema=None)


def test_a_snapshot_of_patients_has_the_same_rows(tmp_path):
    source = write_csv(tmp_path, *invent(30, seed=3))
    loaded = PatientsSection.model_validate({"reference_date": DAY, **source})

    assert write_snapshot(loaded, tmp_path, tmp_path / "patients.arrow") == 30

    content = {**SECTION, "source": {"file": "patients.arrow", "id": "patient"}, "filters": {}}
    section = OfferSection.model_validate(content)
    content = read_source(section, section.source, tmp_path, lambda _: None, SCHEMA)
    original = read(tmp_path, source)[1]
    assert content.ids == original.ids
    assert [row.sets for row in content.items] == [row.sets for row in original.items]


HOSPITALS = {"north": write_csv, "south": write_sqlite, "west": write_export}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Run a broker and three hospitals; yield it, all rows and their hospitals."""
    folder = tmp_path_factory.mktemp("patients")
    (folder / "patients.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    shared = {**SECTION, "providers": list(HOSPITALS)}
    collections = {"patients": shared, "sealed": {**shared, "trust": "sealed"}}
    rows, owners = {}, []
    with deployed(folder, collections) as running:
        for seed, (name, write) in enumerate(HOSPITALS.items()):
            (folder / name).mkdir()
            (folder / name / "patients.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
            persons, conditions = invent(80, seed=seed)
            source = write(folder / name, persons, conditions)
            running.enrol(name)
            secret, found = running.identities[name].private, {}
            for one, trust in (("patients", "trusted"), ("sealed", "sealed")):
                section = make_section(source, policy={"level": "distances"}, trust=trust)
                found[one] = OfferedObjects.read(name, one, section, folder / name, secret=secret)
            running.start(name, found)
            own = expected_rows(persons, conditions, CODES["concept_code"])
            rows |= {(name, patient): row for patient, row in own.items()}
        owners = [name for name, _ in rows]
        running.wait(*HOSPITALS)
        yield running, rows, owners


QUERIES = [
    {"age": 61, "sex": "F", "conditions": ["59621000", "44054006"]},
    {"age": 80, "conditions": []},
    {"conditions": ["unknown", "22298006"]},
    {"age": 20.5, "sex": "M"},
]


@pytest.mark.parametrize("algorithm", ["auto", "baseline", "dann", "eager", "hufu+"])
def test_patients_like_mine_equal_the_pooled_ones(hospitals, algorithm):
    running, rows, owners = hospitals
    names = ("age", "sex", "conditions")
    pooled = FederatedNeighbors(SCHEMA, "baseline").fit(
        [dict(zip(names, row, strict=True)) for row in rows.values()], parties=owners
    )

    with running.client("patients", algorithm=algorithm) as search:
        distances, found = search.kneighbors(QUERIES, 12)

    expected, _ = pooled.kneighbors(QUERIES, 12)
    alone = FederatedNeighbors(SCHEMA, "baseline")
    for query, near, own, objects in zip(QUERIES, distances, expected, found, strict=True):
        assert near.tolist() == own.tolist()
        for distance, one in zip(near, objects, strict=True):
            row = dict(zip(names, rows[one.provider, one.id], strict=True))
            assert alone.fit([row]).kneighbors([query], 1)[0][0].tolist() == [distance]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"age": True}, "column 'age': expected a number from 0 to 110, or an empty cell"),
        ({"conditions": [True]}, "column 'conditions': expected texts and whole numbers as codes"),
        ({"sex": True}, "column 'sex': expected one of"),
    ],
)
def test_a_boolean_is_neither_a_number_nor_a_code(hospitals, query, message):
    with hospitals[0].client("patients") as search, pytest.raises(ServiceError) as caught:
        search.kneighbors([query], 1)
    assert message in str(caught.value)


def test_sealed_queries_find_the_same_patients(hospitals):
    running = hospitals[0]
    keys = {name: make_sealing_key(one.private).hex() for name, one in running.identities.items()}

    with running.client("sealed", keys=keys) as sealed, running.client("patients") as search:
        found, expected = (one.kneighbors(QUERIES, 7)[0] for one in (sealed, search))

    assert [near.tolist() for near in found] == [near.tolist() for near in expected]


def test_sealed_queries_outside_of_the_schema_are_refused(hospitals):
    running = hospitals[0]
    keys = {name: make_sealing_key(one.private).hex() for name, one in running.identities.items()}

    with running.client("sealed", keys=keys) as sealed, pytest.raises(ServiceError) as caught:
        sealed.kneighbors([{"sex": "female"}], 1)

    assert (caught.value.status, caught.value.code) == (422, "invalid-query")


def test_patients_are_searched_on_the_command_line(hospitals, monkeypatch):
    running, rows, _ = hospitals
    monkeypatch.setenv("FEDNEIGHBORS_TOKEN", running.token)
    query = json.dumps(QUERIES[0])
    options = ["-k", "3", "--certificate", str(running.certificate), "--json"]

    done = CliRunner().invoke(app, ["search", running.url, "patients", query, *options])

    assert done.exit_code == 0, done.output
    neighbors = json.loads(done.stdout)["neighbors"]
    assert len(neighbors) == 3
    assert all((one["provider"], one["id"]) in rows for one in neighbors)
    in_order = "61,F,59621000 44054006"
    again = CliRunner().invoke(app, ["search", running.url, "patients", in_order, *options])
    assert json.loads(again.stdout)["neighbors"] == neighbors
    table = CliRunner().invoke(app, ["search", running.url, "patients", query, *options[:-1]])
    assert "rows with few cells can be near by chance" in table.stdout


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"conditions": "[1"}, "expected codes in brackets as JSON"),
        ({"conditions": [1.5]}, "column 'conditions': expected a list of codes"),
        ({"conditions": {"a": 1}}, "and of sets to lists"),
        ({"conditions": "I10;E11"}, "expected a list of codes, or spaces between them"),
        ({"age": [61]}, "expected a mapping of columns to numbers, texts or null"),
    ],
)
def test_a_query_without_a_set_is_explained(hospitals, query, words):
    with (
        hospitals[0].client("patients") as search,
        pytest.raises(ServiceError, match=words) as caught,
    ):
        search.kneighbors([query], 1)
    assert caught.value.status == 422


def test_the_columns_of_patients_are_described(hospitals):
    with hospitals[0].client("patients") as search:
        columns = search.describe()["columns"]

    assert columns == {"age": [0, 110], "sex": ["F", "M"], "conditions": "set"}
