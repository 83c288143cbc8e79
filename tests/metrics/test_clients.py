"""Scores over clients, as tables of personalization print them."""

import math

from fedneighbors.metrics import average_accuracy, bottom_decile


def test_the_average_weighs_clients_by_their_test_rows():
    right = {"a": (1, 1), "b": (0, 3)}

    assert average_accuracy(right, ["a", "b"]) == 0.25


def test_the_bottom_decile_is_the_tenth_of_a_hundred_from_below():
    right = {str(place): (place, 100) for place in range(100)}

    assert bottom_decile(right, list(right)) == 0.09
    assert bottom_decile({"a": (1, 2), "b": (2, 2)}, ["a", "b"]) == 0.5


def test_clients_without_rows_have_no_score():
    assert math.isnan(average_accuracy({"a": (0, 0)}, ["a"]))
    assert math.isnan(bottom_decile({"a": (0, 0)}, ["a"]))
    assert bottom_decile({"a": (0, 0), "b": (1, 2)}, ["a", "b"]) == 0.5
