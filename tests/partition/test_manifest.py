"""Manifests of partitions."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError
from fedneighbors.partition import (
    Manifest,
    describe,
    dirichlet,
    groups,
    ordered_roles,
    row_roles,
    unseen_parties,
)


def make_example():
    parties = ["party-10", "party-2", "party-2", "party-10", "party-2"]
    return describe(
        parties, ["x", "x", "y", "x", "z"], kind="dirichlet", seed=4, parameters={"alpha": 0.5}
    )


def test_manifest_counts_rows_and_classes_of_each_party():
    manifest = make_example()

    assert manifest.parties == ("party-2", "party-10")
    assert manifest.rows_per_party == (3, 2)
    assert manifest.classes == ("x", "y", "z")
    assert manifest.class_counts == ((1, 1, 1), (2, 0, 0))
    assert (manifest.kind, manifest.seed, manifest.n_rows) == ("dirichlet", 4, 5)
    assert manifest.parameters == {"alpha": 0.5}


@given(rows=st.lists(st.tuples(st.text(max_size=3), st.integers(-3, 3)), min_size=1, max_size=30))
@settings(deadline=None)
def test_manifest_round_trips_through_json(rows):
    parties, y = zip(*[(name.replace("\0", ""), label) for name, label in rows], strict=True)
    manifest = describe(parties, y, kind="natural")

    restored = Manifest.from_json(manifest.to_json())

    assert restored == manifest


def test_manifest_digest_identifies_the_split():
    y = np.repeat([0, 1], 30)

    first, repeated, other = (
        describe(dirichlet(y, 3, alpha=5.0, seed=seed), y, kind="dirichlet", seed=seed)
        for seed in (1, 1, 2)
    )

    assert first == repeated
    assert first.digest != other.digest


@pytest.mark.parametrize("y", [[0.5, 1.5], [True, False], ["a", "b"], [1, 2]])
def test_labels_of_every_type_round_trip(y):
    manifest = describe(["a", "b"], y, kind="natural")

    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"text"', "{}", '{"format": 1'])
def test_invalid_manifest_text_is_refused(text):
    with pytest.raises(DataError, match="not a partition manifest"):
        Manifest.from_json(text)


def edit_example(**fields):
    return json.dumps({**json.loads(make_example().to_json()), **fields})


def test_a_later_format_is_refused():
    with pytest.raises(DataError, match="has format 2; this version reads 1"):
        Manifest.from_json(edit_example(format=2))


@pytest.mark.parametrize(
    "field",
    ["kind", "parameters", "seed", "n_rows", "parties", "rows_per_party", "classes",
     "class_counts", "digest"],
)  # fmt: skip
def test_missing_field_or_wrong_type_is_refused(field):
    content = json.loads(make_example().to_json())
    del content[field]

    with pytest.raises(DataError, match=f"lacks {field}; it is truncated or was edited"):
        Manifest.from_json(json.dumps(content))
    with pytest.raises(DataError, match="damaged: "):
        Manifest.from_json(edit_example(**{field: 1.5}))


@pytest.mark.parametrize(
    "fields",
    [
        {"n_rows": 6},
        {"rows_per_party": [2, 3]},
        {"rows_per_party": [5]},
        {"parties": ["a", "a"]},
        {"parties": ["a"]},
        {"classes": ["x", "y"]},
        {"class_counts": [[1, 1, 1], [2, 0]]},
    ],
)
def test_inconsistent_counts_are_refused(fields):
    with pytest.raises(DataError, match="do not add up"):
        Manifest.from_json(edit_example(**fields))


def test_a_negative_count_is_refused():
    with pytest.raises(DataError, match="non-negative number, found -1"):
        Manifest.from_json(edit_example(class_counts=[[1, 3, -1], [2, 0, 0]]))


def make_full_manifest():
    """Return a manifest with all optional fields."""
    parties = ["b", "a", "a", "b", "a", "a", "c"]
    roles = ordered_roles(parties, test=0.3, gap=1)
    return describe(
        parties, [0] * 7, kind="natural", roles=roles, unseen=["c"], groups=[1, 0, 0, 1, 0, 0, 1]
    )


def test_manifest_records_roles_unseen_and_groups():
    manifest = make_full_manifest()

    assert manifest.parties == ("a", "b", "c")
    assert manifest.role_counts == ((2, 0, 1), (0, 0, 1), (1, 0, 0))
    assert manifest.unseen == ("c",)
    assert manifest.groups == (0, 1, 1)
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_role_digest_distinguishes_equal_counts():
    parties = ["a"] * 20

    first, repeated, other = (
        describe(parties, parties, kind="natural", roles=row_roles(parties, seed=seed))
        for seed in (1, 1, 2)
    )

    assert first.role_digest == repeated.role_digest != other.role_digest
    assert first.role_counts == other.role_counts == ((16, 0, 4),)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.integers(0, 5),
)
@settings(deadline=None)
def test_roles_in_a_manifest_count_every_row_once(owners, validation, test, seed):
    parties = [f"party-{owner}" for owner in owners]
    roles = row_roles(parties, validation=validation, test=test, seed=seed)

    manifest = describe(
        parties,
        owners,
        kind="natural",
        roles=roles,
        unseen=unseen_parties(parties, 0.4, seed=seed),
        groups=groups(parties, 1, seed=seed),
    )

    assert tuple(sum(row) for row in manifest.role_counts) == manifest.rows_per_party
    assert sum(row[2] for row in manifest.role_counts) == roles.test.sum()
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_manifest_without_roles_is_read():
    content = json.loads(make_example().to_json())
    for name in ("role_counts", "role_digest", "unseen", "groups"):
        assert content.pop(name) is None

    restored = Manifest.from_json(json.dumps(content))

    assert restored == make_example()
    assert restored.unseen is None


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({"role_counts": [[1, 0, 0]]}, "roles"),
        ({"role_counts": [[5, 0, 0], [0, 0, 1], [1, 0, 0]]}, "roles"),
        ({"role_counts": [[1, 0], [0, 1], [1, 0]]}, "roles"),
        ({"role_digest": None}, "roles"),
        ({"unseen": ["d"]}, "unseen parties"),
        ({"unseen": ["c", "c"]}, "unseen parties"),
        ({"groups": [0, 1]}, "groups"),
    ],
)
def test_roles_of_other_parties_are_refused(fields, subject):
    content = json.loads(make_full_manifest().to_json()) | fields

    with pytest.raises(DataError, match=f"manifest's {subject} do not match its 3 parties"):
        Manifest.from_json(json.dumps(content))


@pytest.mark.parametrize(
    "fields",
    [{"role_counts": 3}, {"role_digest": 3}, {"unseen": [1]}, {"groups": [-1, 0, 0]}],
)
def test_roles_of_another_type_are_refused(fields):
    content = json.loads(make_full_manifest().to_json()) | fields

    with pytest.raises(DataError, match="damaged: "):
        Manifest.from_json(json.dumps(content))


def test_mismatched_roles_and_groups_are_refused():
    roles = row_roles(["a"] * 3, seed=0)

    with pytest.raises(ValueError, match="expected roles of 2 rows"):
        describe(["a", "a"], [0, 1], kind="natural", roles=roles)
    with pytest.raises(ValueError, match="expected the group of 2 rows"):
        describe(["a", "a"], [0, 1], kind="natural", groups=[0])
    with pytest.raises(ValueError, match="the same group for all rows of a party"):
        describe(["a", "a"], [0, 1], kind="natural", groups=[0, 1])
    with pytest.raises(DataError, match="unseen parties do not match"):
        describe(["a", "a"], [0, 1], kind="natural", unseen=["b"])


@pytest.mark.parametrize(("parties", "y"), [([], []), (["a"], [0, 1]), ([["a"]], [[0]])])
def test_lists_of_different_length_are_refused(parties, y):
    with pytest.raises(ValueError, match="one of each per row"):
        describe(parties, y, kind="natural")
