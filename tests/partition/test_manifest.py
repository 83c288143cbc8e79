"""What is written down about a partition."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError
from fedneighbors.partition import Manifest, describe, dirichlet


def example():
    parties = ["party-10", "party-2", "party-2", "party-10", "party-2"]
    return describe(
        parties, ["x", "x", "y", "x", "z"], kind="dirichlet", seed=4, parameters={"alpha": 0.5}
    )


def test_manifest_counts_rows_and_classes_of_each_party():
    manifest = example()

    assert manifest.parties == ("party-2", "party-10")
    assert manifest.rows_per_party == (3, 2)
    assert manifest.classes == ("x", "y", "z")
    assert manifest.class_counts == ((1, 1, 1), (2, 0, 0))
    assert (manifest.kind, manifest.seed, manifest.n_rows) == ("dirichlet", 4, 5)
    assert manifest.parameters == {"alpha": 0.5}


@given(rows=st.lists(st.tuples(st.text(max_size=3), st.integers(-3, 3)), min_size=1, max_size=30))
@settings(deadline=None)
def test_manifest_survives_its_text_form(rows):
    parties, y = zip(*[(name.replace("\0", ""), label) for name, label in rows], strict=True)
    manifest = describe(parties, y, kind="natural")

    again = Manifest.from_json(manifest.to_json())

    assert again == manifest


def test_the_same_split_gives_an_equal_manifest_and_another_seed_another_digest():
    y = np.repeat([0, 1], 30)

    first, again, other = (
        describe(dirichlet(y, 3, alpha=5.0, seed=seed), y, kind="dirichlet", seed=seed)
        for seed in (1, 1, 2)
    )

    assert first == again
    assert first.digest != other.digest


@pytest.mark.parametrize("y", [[0.5, 1.5], [True, False], ["a", "b"], [1, 2]])
def test_labels_of_every_type_survive(y):
    manifest = describe(["a", "b"], y, kind="natural")

    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"text"', "{}", '{"format": 1'])
def test_text_that_is_no_manifest_is_refused(text):
    with pytest.raises(DataError, match="not a partition manifest"):
        Manifest.from_json(text)


def changed(**fields):
    return json.dumps({**json.loads(example().to_json()), **fields})


def test_a_later_format_is_refused():
    with pytest.raises(DataError, match="has format 2; this version reads 1"):
        Manifest.from_json(changed(format=2))


@pytest.mark.parametrize(
    "field",
    ["kind", "parameters", "seed", "n_rows", "parties", "rows_per_party", "classes",
     "class_counts", "digest"],
)  # fmt: skip
def test_a_field_that_is_gone_or_of_another_type_is_named_or_refused(field):
    content = json.loads(example().to_json())
    del content[field]

    with pytest.raises(DataError, match=f"lacks {field}; it is cut or edited"):
        Manifest.from_json(json.dumps(content))
    with pytest.raises(DataError, match="damaged: "):
        Manifest.from_json(changed(**{field: 1.5}))


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
def test_counts_that_do_not_add_up_are_refused(fields):
    with pytest.raises(DataError, match="do not add up"):
        Manifest.from_json(changed(**fields))


def test_a_negative_count_is_refused():
    with pytest.raises(DataError, match="not negative, found -1"):
        Manifest.from_json(changed(class_counts=[[1, 3, -1], [2, 0, 0]]))


@pytest.mark.parametrize(("parties", "y"), [([], []), (["a"], [0, 1]), ([["a"]], [[0]])])
def test_lists_that_do_not_fit_are_not_described(parties, y):
    with pytest.raises(ValueError, match="one of each per row"):
        describe(parties, y, kind="natural")
