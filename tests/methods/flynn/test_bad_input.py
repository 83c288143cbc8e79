import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from fedneighbors import FlyNNClassifier
from fedneighbors.errors import DataError, FederationError, PartyRefused
from fedneighbors.methods.flynn._features import convert_for_kernels

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3))
Y = np.arange(30) % 2


def classifier(**options):
    return FlyNNClassifier(**{"n_units": 50, "n_active": 5, **options})


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n_units": 0}, ValueError, r"expected n_units in \[1, 16777216\], got 0"),
        ({"n_units": -3}, ValueError, r"expected n_units in \[1, 16777216\], got -3"),
        ({"n_units": 50.0}, TypeError, "expected n_units as an integer or None, got 50.0"),
        ({"n_units": "many"}, TypeError, "expected n_units as an integer or None, got 'many'"),
        ({"n_inputs": 0}, ValueError, r"n_inputs=0 does not lie in \[1, 256\]"),
        (
            {"n_inputs": 4, "expand": None},
            ValueError,
            r"n_inputs=4 .* \[1, 3\].*3 columns.*change n_inputs or expand",
        ),
        ({"n_inputs": 7, "expand": "mirror"}, ValueError, r"n_inputs=7 does not lie in \[1, 6\]"),
        ({"n_active": 0}, ValueError, "n_active=0 does not lie in"),
        ({"n_active": 51}, ValueError, "n_active=51 .*lower n_active or raise n_units"),
        ({"n_active": None, "n_units": "x"}, TypeError, "expected n_units as an integer"),
        ({"decay": -0.1}, ValueError, r"expected decay in \[0, 1\], 'auto' or None, got -0.1"),
        ({"decay": 1.01}, ValueError, r"expected decay in \[0, 1\], 'auto' or None, got 1.01"),
        (
            {"decay": float("nan")},
            ValueError,
            r"expected decay in \[0, 1\], 'auto' or None, got nan",
        ),
        ({"decay": "slow"}, TypeError, "expected decay as a number, 'auto' or None, got 'slow'"),
        ({"expand": "double"}, ValueError, "expected expand 'auto', None or one of .*got 'double'"),
        ({"expand": 2}, ValueError, "expected expand 'auto', None or one of .*got 2"),
        ({"standardize": "std"}, ValueError, "expected standardize True, False, .*got 'std'"),
        ({"standardize": None}, ValueError, "expected standardize True, False, .*got None"),
        (
            {"class_normalized": "yes"},
            TypeError,
            "expected class_normalized True, False or 'auto', got 'yes'",
        ),
        ({"random_state": -1}, ValueError, r"expected random_state in \[0, 2\*\*63\), got -1"),
        ({"random_state": 2**63}, ValueError, r"expected random_state in \[0, 2\*\*63\), got 9"),
        ({"random_state": "x"}, ValueError, "cannot be used to seed"),
    ],
    ids=str,
)
def test_errors_name_the_argument_and_the_expected_values(options, error, words):
    with pytest.raises(error, match=words):
        classifier(**options).fit(X, Y)


def with_value(value):
    x = X.copy()
    x[3, 1] = value
    return x


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (with_value(np.nan), "Input X contains NaN"),
        (with_value(np.inf), "Input X contains infinity"),
        (with_value(-np.inf), "Input X contains infinity"),
        (X.astype(str), "Convert your data to numeric values"),
        (
            pd.DataFrame(X, columns=["a", "b", "c"]).assign(b="text"),
            "cells other than numbers: 'b'; drop them",
        ),
        (X + 1j, "Complex data not supported"),
        (X[0], "Expected 2D array, got 1D array"),
        (X[:0], r"Found array with 0 sample\(s\)"),
        (X[:, :0], r"Found array with 0 feature\(s\)"),
        (X[:7], "inconsistent numbers of samples"),
    ],
    ids=[
        "nan",
        "inf",
        "-inf",
        "text",
        "text column",
        "complex",
        "1-d",
        "empty",
        "no columns",
        "short",
    ],
)
def test_a_table_that_cannot_be_used_is_refused(x, words):
    with pytest.raises(ValueError, match=words):
        classifier().fit(x, Y[:0] if len(x) == 0 else Y)


def test_dates_are_refused_as_not_numeric():
    dates = np.array(["2020-01-01"] * 30, "datetime64[D]")[:, None]

    with pytest.raises(PartyRefused, match=r"a column is not numeric \(column 0\)"):
        classifier().fit(dates, Y)


@pytest.mark.parametrize(
    ("y", "error", "words"),
    [
        (None, ValueError, "requires y to be passed"),
        (np.where(Y, np.nan, 1.0), ValueError, "found 15 rows without one, first at position 1"),
        (X[:, 0], ValueError, "continuous"),
        (np.column_stack([Y, Y]), ValueError, "y should be a 1d array"),
        (Y[:5], ValueError, "inconsistent numbers of samples"),
        (np.array([1, "a"], object)[Y], ValueError, "expected labels of one type, found text"),
        (
            np.array(["2020-01-01", "2021-01-01"], "datetime64[D]")[Y],
            PartyRefused,
            "a label is nei",
        ),
    ],
    ids=["none", "nan", "continuous", "2-d", "short", "mixed", "dates"],
)
def test_labels_that_cannot_be_used_are_refused(y, error, words):
    with pytest.raises(error, match=words):
        classifier().fit(X, y)


def test_one_class_is_refused_as_a_value_error_too():
    with pytest.raises(DataError, match="at least two classes over all parties, got one class 4"):
        classifier().fit(X, np.full(30, 4))
    with pytest.raises(ValueError, match="add rows of another class"):
        classifier().fit(X, np.full(30, 4))


@pytest.mark.parametrize(
    ("parties", "words"),
    [
        (["a"] * 29, r"expected one party for each of 30 rows, got shape \(29,\)"),
        ([], r"expected one party for each of 30 rows, got shape \(0,\)"),
        ("a", r"expected one party for each of 30 rows, got shape \(\)"),
        ([["a", "b"]] * 30, r"expected one party for each of 30 rows, got shape \(30, 2\)"),
        ([None] + ["a"] * 29, "found 1 rows without one; fill them in"),
        ([float("nan")] + ["a"] * 29, "found 1 rows without one; fill them in"),
        ([np.nan, np.nan] + [1.0] * 28, "found 2 rows without one; fill them in"),
        (pd.Series(["a", None] * 15), "found 15 rows without one; fill them in"),
        (pd.array([pd.NA, "a"] * 15, dtype="string"), "found 15 rows without one; fill them in"),
        (pd.array([pd.NA, 1] * 15, dtype="Int64"), "found 15 rows without one; fill them in"),
        (pd.to_datetime(pd.Series(["2020-01-01", None] * 15)), "found 15 rows without one"),
    ],
    ids=str,
)
def test_rows_without_a_party_are_refused(parties, words):
    with pytest.raises(ValueError, match=words):
        classifier().fit(X, Y, parties=parties)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X[:, :2], "X has 2 features, but FlyNNClassifier is expecting 3 features"),
        (with_value(np.nan), "Input X contains NaN"),
        (X[0], "Expected 2D array"),
    ],
    ids=["columns", "nan", "1-d"],
)
def test_a_table_of_another_shape_is_refused_after_training(method, x, words):
    fitted = classifier().fit(X, Y)

    with pytest.raises(ValueError, match=words):
        getattr(fitted, method)(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda new: new.predict(X),
        lambda new: new.predict_proba(X),
        lambda new: new.decision_function(X),
        lambda new: new.unlearn(X, Y),
        lambda new: new.merge(classifier().fit(X, Y)),
        lambda new: classifier().fit(X, Y).merge(new),
        lambda new: new.save("nowhere"),
        lambda new: new.name_features(["a", "b", "c"]),
    ],
)
def test_an_unfitted_estimator_raises_an_error(call):
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        call(classifier())


@pytest.mark.parametrize("names", [["a"], "abc", ["a", "b", "c", "d"]], ids=str)
def test_names_must_be_one_for_each_column(names):
    with pytest.raises(ValueError, match="expected a list of 3 names, got"):
        classifier().fit(X, Y).name_features(names)


def test_values_that_cannot_be_standardized_name_their_column():
    x = pd.DataFrame(X, columns=["a", "b", "c"]).assign(b=1e70)

    with pytest.raises(PartyRefused, match=r"a value is too large to standardize \(b\)"):
        classifier().fit(x, Y)


def test_sums_that_would_overflow_are_refused_before_they_wrap():
    x = np.full((30, 3), 2**62)

    with pytest.raises(ValueError, match="overflow; scale x down"):
        classifier(standardize=False, expand=None, n_inputs=3).fit(x, Y)


@pytest.mark.parametrize(
    "dtype", ["bool", "float16", "uint32", "uint64", "longdouble", ">i4", ">f8"]
)
def test_numbers_of_any_dtype_are_hashed_by_their_value(dtype):
    x = RNG.integers(0, 2, (30, 6))

    reference = classifier(standardize=False, expand=None).fit(x, Y)
    other = classifier(standardize=False, expand=None).fit(x.astype(dtype), Y)

    assert other.counts_.tolist() == reference.counts_.tolist()
    assert (convert_for_kernels(x.astype(dtype)) == x).all()


def test_an_error_of_a_party_is_a_federation_error():
    with pytest.raises(FederationError):
        classifier().fit(X * 1e70, Y, parties=Y)
