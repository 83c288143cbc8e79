"""Ontologies in the OBO format, and sets of terms closed under ancestors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.datasets import Schema
from fedneighbors.datasets._ontology import Ontology
from fedneighbors.errors import DataError, MissingDataError
from fedneighbors.methods.fedknn.metrics._mixed import TabularMetric

OBO = """format-version: 1.2
ontology: hp

[Term]
id: HP:0000001
name: All

[Term]
id: HP:0000118
name: Phenotypic abnormality
is_a: HP:0000001 ! All

[Term]
id: HP:0000707
name: Abnormality of the nervous system
alt_id: HP:0001333
is_a: HP:0000118 {source="x"} ! Phenotypic abnormality

[Term]
id: HP:0001250
name: Seizure
is_a: HP:0000707 ! Abnormality of the nervous system

[Term]
id: HP:0000478
name: Abnormality of the eye
is_a: HP:0000118 ! Phenotypic abnormality

[Term]
id: HP:0000057
is_obsolete: true
replaced_by: HP:0001250

[Typedef]
id: part_of
is_a: HP:0001250
"""
NERVES = {"HP:0000001", "HP:0000118", "HP:0000707"}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "hp.obo"
    path.write_text(OBO, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("codes", "closed"),
    [
        ([], set()),
        (["HP:0000001"], {"HP:0000001"}),
        (["HP:0001250"], {*NERVES, "HP:0001250"}),
        (["HP:0001333"], NERVES),  # an earlier identifier
        (["HP:0000057"], {*NERVES, "HP:0001250"}),  # replaced by another term
        (["HP:9999999"], {"HP:9999999"}),  # unknown
        (["HP:0001250", "HP:0000478"], {*NERVES, "HP:0001250", "HP:0000478"}),
    ],
)
def test_terms_bring_their_ancestors(path, codes, closed):
    assert Ontology.read(path).close(codes) == closed


@given(st.dictionaries(st.integers(0, 9), st.sets(st.integers(0, 9)), max_size=10), st.data())
def test_closures_equal_a_search_of_all_paths(tmp_path_factory, parents, data):
    lines = [
        f"[Term]\nid: {term}\n" + "".join(f"is_a: {one}\n" for one in sorted(own))
        for term, own in {0: set(), **parents}.items()  # also with cycles
    ]
    path = tmp_path_factory.mktemp("obo") / "x.obo"
    path.write_text("\n".join(lines), encoding="utf-8")
    codes = data.draw(st.sets(st.integers(0, 11)))

    closed = Ontology.read(path).close(map(str, codes))

    expected = set(codes)
    for _ in range(12):
        expected |= {one for term in expected for one in parents.get(term, ())}
    assert closed == set(map(str, expected))


def test_a_file_without_terms_is_refused(tmp_path):
    (tmp_path / "x.obo").write_text("format-version: 1.2\n", encoding="utf-8")

    with pytest.raises(DataError, match="has no terms"):
        Ontology.read(tmp_path / "x.obo")


def test_a_schema_reads_its_ontology(path, tmp_path):
    text = "[columns.phenotypes]\nkind = 'set'\nontology = 'hp.obo'\n"
    (tmp_path / "rare.toml").write_text(text, encoding="utf-8")
    schema = Schema.load(tmp_path / "rare.toml")
    seizure, eye = TabularMetric(schema).read(
        [{"phenotypes": ["HP:0001250"]}, {"phenotypes": "HP:0000478"}]
    )

    # two of five terms are common
    assert TabularMetric(schema).distance(seizure, eye) == 3 / 5
    path.write_text(OBO.replace("is_a: HP:0000707 !", "is_a: HP:0000118 !"), encoding="utf-8")
    assert Schema.load(tmp_path / "rare.toml").digest != schema.digest
    path.unlink()
    with pytest.raises(MissingDataError, match=r"hp\.obo"):
        Schema.load(tmp_path / "rare.toml")


def test_a_schema_without_its_folder_reads_no_ontology():
    schema = Schema.from_toml("[columns.phenotypes]\nkind = 'set'\nontology = 'hp.obo'\n")

    with pytest.raises(DataError, match="read the schema from its file"):
        TabularMetric(schema).read([{"phenotypes": ["HP:0001250"]}])
