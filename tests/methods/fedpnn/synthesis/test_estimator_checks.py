from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors.methods.fedpnn.synthesis import TabularSynthesizer

SMALL = {"generator": (4,), "critic": (4,), "epochs": 1, "embedding": 4, "min_count": None}

# scikit-learn checks that fail by design with a generator per class, with the reason.
ONE_ROW = "its labels have a class of one row, and a generator is not trained on one row"
EXPECTED_FAILURES = dict.fromkeys(
    [
        "check_dont_overwrite_parameters",
        "check_f_contiguous_array_estimator",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_dict_unchanged",
        "check_fit2d_predict1d",
    ],
    ONE_ROW,
)


@parametrize_with_checks(
    [TabularSynthesizer(**SMALL), TabularSynthesizer(**SMALL, per_class=False)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES if estimator.per_class else {},
)
def test_synthesizer_passes_the_scikit_learn_checks(estimator, check):
    check(estimator)


def test_clone_has_the_same_parameters():
    synthesizer = TabularSynthesizer(noise="concat", epochs={0: 3, 1: 4}, categorical_features=[2])

    assert clone(synthesizer).get_params() == synthesizer.get_params()
