import pickle
import re

import pytest

from fedneighbors import errors


def every_error():
    return [
        thing
        for thing in vars(errors).values()
        if isinstance(thing, type) and thing.__module__ == errors.__name__
    ]


def test_every_error_derives_from_one_base():
    for error in every_error():
        assert issubclass(error, errors.FedneighborsError)
        assert error.__doc__


def test_docstring_tree_matches_the_class_tree():
    drawn = re.findall(r"^    ([│ ├└─]*)(\w+)", errors.__doc__, flags=re.MULTILINE)
    path = []
    parents = {}
    for branch, name in drawn:
        depth = len(branch) // 4
        path[depth:] = [name]
        parents[name] = path[depth - 1] if depth else None

    assert set(parents) == {kind.__name__ for kind in every_error()}
    for name, parent in parents.items():
        if parent:
            assert getattr(errors, parent) in getattr(errors, name).__bases__


def test_errors_derive_from_the_documented_builtins():
    assert issubclass(errors.DataError, ValueError)
    assert issubclass(errors.MissingDataError, ValueError)
    assert issubclass(errors.MissingExtraError, ImportError)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            errors.MissingExtraError("flwr", "flower"),
            "'flwr' is not installed; install it with: pip install 'fedneighbors[flower]'",
        ),
        (
            errors.SchemaMismatch("north", "age", "number", "text"),
            "party 'north', column 'age': expected number, found text; "
            "bring the party's table in line with the others before training",
        ),
        (
            errors.PartyMissing({"b": "timed out", "a": "gone"}, "the counts"),
            "no reply to the counts from party 'a' (gone), 'b' (timed out); no result was written. "
            "Start the party again, or run without it, then repeat the run",
        ),
        (errors.PartyRefused("north", "no rows", "age"), "party 'north' refused: no rows (age)"),
        (errors.PartyRefused("north", "no rows"), "party 'north' refused: no rows"),
    ],
)
def test_error_message_names_cause_and_remedy(error, words):
    assert str(error) == words


def test_error_details_are_attributes():
    mismatch = errors.SchemaMismatch("north", "age", "number", "text")
    missing = errors.PartyMissing({"b": "gone"}, "the counts")
    refused = errors.PartyRefused("north", "no rows", "age")

    known = (mismatch.party, mismatch.column, mismatch.expected, mismatch.found)
    assert known == ("north", "age", "number", "text")
    assert (missing.missing, missing.during) == ({"b": "gone"}, "the counts")
    assert (refused.party, refused.code, refused.detail) == ("north", "no rows", "age")


@pytest.mark.parametrize(
    "error",
    [
        errors.DataError("bad"),
        errors.MissingExtraError("flwr", "flower"),
        errors.SchemaMismatch("north", "age", "number", "text"),
        errors.PartyMissing({"b": "gone"}, "the counts"),
        errors.PartyRefused("north", "no rows", "age"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_survives_pickling(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - written in the same line

    assert type(copy) is type(error)
    assert str(copy) == str(error)
