"""Tick labels have units and enough digits."""

import pytest

from fedneighbors.reports._style import TickLabels


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.8, 0.825, 0.85], ["0.800", "0.825", "0.850"]),
        ([0.5, 1.0, 1.5], ["0.5", "1.0", "1.5"]),
        ([0, 2.5, 5], ["0.0", "2.5", "5.0"]),
        ([0.1, 0.30000000000000004, 0.5], ["0.1", "0.3", "0.5"]),
        ([0.0025, 0.005], ["0.0025", "0.0050"]),
        ([-10, 0, 10], ["\N{MINUS SIGN}10", "0", "10"]),
        ([1000, 3500], ["1,000", "3,500"]),
    ],
)
def test_tick_labels_have_the_decimals_of_their_step(values, labels):
    assert TickLabels("accuracy", log=False).format_ticks(values) == labels
