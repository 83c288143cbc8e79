"""Numbers that change only with the format or the hash; the change log records such changes."""

import hashlib

import numpy as np

from fedneighbors import FlyNNClassifier

X = np.array([[k % 5, k % 3, (k * k) % 7, k % 2] for k in range(24)])
Y = np.array([k % 3 for k in range(24)])
PLAIN = {
    "n_units": 8,
    "n_inputs": 2,
    "n_active": 3,
    "standardize": False,
    "expand": None,
    "random_state": 11,
}


def test_the_counts_of_a_fixed_table_are_the_known_ones():
    classifier = FlyNNClassifier(**PLAIN)

    counts = classifier.fit(X, Y).counts_

    assert counts.tolist() == [
        [8, 6, 2, 5, 1, 0, 2, 0],
        [5, 6, 2, 3, 4, 0, 0, 4],
        [5, 2, 3, 3, 4, 0, 0, 7],
    ]


def test_the_file_of_a_fixed_table_is_the_known_one():
    classifier = FlyNNClassifier(**PLAIN, decay=0.5, class_normalized=False)

    raw = classifier.fit(X, Y).model_.to_bytes()

    assert hashlib.sha256(raw).hexdigest() == (
        "5d383091efd1c49a626af77fd2b2b62842ad725cd63eb60404927ea7b60a7e4e"
    )


def test_the_counts_under_every_expansion_are_the_known_ones():
    digests = {}
    for expand in ("mirror", "population", "thermometer", "fourier"):
        classifier = FlyNNClassifier(
            n_units=200, n_inputs=3, n_active=20, standardize="feature", expand=expand
        )
        counts = classifier.fit(X, Y).counts_
        digests[expand] = hashlib.sha256(counts.astype("<i4").tobytes()).hexdigest()[:16]

    assert digests == {
        "mirror": "dbeb2a3ad0c7553c",
        "population": "758885b53076a523",
        "thermometer": "71c798dbc4fd7360",
        "fourier": "f70e778c654ad826",
    }
