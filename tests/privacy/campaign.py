"""The full audit: twenty audits of every planted bug and correct mechanism, as a record.

All verdicts on the correct mechanisms together hold with a confidence of 99.9 %.

Run from the root of the repository::

    python -m tests.privacy.campaign docs/results/privacy/audit.json
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from fedneighbors.privacy.audit._enumeration import enumerate_law, exact_delta, exact_epsilon
from fedneighbors.privacy.audit._releases import audit_release
from fedneighbors.privacy.noise._top_picks import TopPicks
from tests.privacy import planted

N_AUDITS = 20
CONFIDENCE = 1 - 0.001 / (N_AUDITS * len(planted.CORRECT))
PICKS_EPSILON = 4
PICKS_PAIRS = [((1, 1, 0, 0), (0, 0, 1, 1)), ((1, 0, 0, 0), (0, 1, 1, 1))]


def n_samples_of(name, trial):
    """Return the number of outputs per input: fewer for slow mechanisms, more near bounds."""
    if "top" in name:
        return 3_000
    if "hundred" in name:
        return 400_000 if "count" in name else 80_000
    return 80_000 if "rho" in vars(trial.claim) else 20_000


def reseeded(name, trial, *, n_audits, share_of_samples=1.0):
    """Return verdicts of audits that differ in the seed only."""
    n_samples = int(n_samples_of(name, trial) * share_of_samples)
    return [
        audit_release(
            trial.against(np.random.default_rng(seed).bytes),
            trial.claim,
            trial.pairs,
            n_samples=n_samples,
            confidence=CONFIDENCE,
        )
        for seed in range(100, 100 + n_audits)
    ]


def summary(name, trial, n_audits):
    verdicts = reseeded(name, trial, n_audits=n_audits)
    losses = [verdict.loss for verdict in verdicts]
    return {
        "mechanism": name,
        "claim": str(trial.claim),
        "samples per input": n_samples_of(name, trial),
        "audits": n_audits,
        "accused": sum(verdict.disproved for verdict in verdicts),
        "smallest certified loss": round(min(losses), 4),
        "largest certified loss": round(max(losses), 4),
        "event of the largest": max(verdicts, key=lambda v: v.loss).certificate.event,
    }


def law_of_picks(mechanism, counts, reach=10):
    return enumerate_law(lambda draws: tuple(mechanism.answer(list(counts), draws)), reach=reach)


def exact_epsilon_of_picks(make):
    """Return the largest exact epsilon over one and two picks and the pairs."""
    pairs = [
        (law_of_picks(make(n_picks), first), law_of_picks(make(n_picks), second))
        for n_picks in (1, 2)
        for first, second in PICKS_PAIRS
    ]
    return max(exact_epsilon(first, second) for first, second in pairs)


def picks_summary(bug):
    counts = (3, 1, 0)
    distances = [
        exact_delta(
            law_of_picks(TopPicks(PICKS_EPSILON, n_picks), counts),
            law_of_picks(planted.BuggyPicks(PICKS_EPSILON, n_picks, bug), counts),
            0,
        )
        for n_picks in (1, 2)
    ]
    epsilon = exact_epsilon_of_picks(lambda n: planted.BuggyPicks(PICKS_EPSILON, n, bug))
    return {
        "bug": bug or "none",
        "claimed epsilon": PICKS_EPSILON,
        "exact epsilon, at least": round(epsilon, 4),
        "total variation from the printed law, at least": round(max(max(distances), 0), 4),
    }


def main(path):
    started = time.process_time()
    record = {
        "what": "certified lower bounds; 99.9 % confidence for all correct mechanisms together",
        "command": "python -m tests.privacy.campaign docs/results/privacy/audit.json",
        "correct": [summary(n, t, N_AUDITS) for n, t in planted.CORRECT.items()],
        "picks, by enumeration": [
            picks_summary(bug) for bug in ["", *planted.PICKS_BUGS, *planted.PICKS_DEVIATIONS]
        ],
        "planted": [summary(n, t, N_AUDITS) for n, t in planted.PLANTED.items()],
    }
    record["cpu_seconds"] = round(time.process_time() - started)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
