"""Record of twenty audits of every correct mechanism and every planted bug.

No correct mechanism is accused, with a confidence of 99.9 % for all their audits together.

Run from the root of the repository::

    python -m tests.privacy.campaign docs/results/privacy/audit.json
"""

import json
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fedneighbors.privacy.audit._enumeration import enumerate_outputs, exact_delta, exact_epsilon
from fedneighbors.privacy.audit._releases import audit_release
from fedneighbors.privacy.noise._top_picks import TopPicks
from tests.privacy import planted

N_AUDITS = 20
CONFIDENCE = 1 - 0.001 / (N_AUDITS * len(planted.CORRECT))
PICKS_EPSILON = 4
PICKS_PAIRS = [((1, 1, 0, 0), (0, 0, 1, 1)), ((1, 0, 0, 0), (0, 1, 1, 1))]


def audit_with_seeds(case, n_audits, *, share_of_samples=1.0):
    """Return the verdicts of audits that differ in the seed only."""
    return [
        audit_release(
            case.seeded(seed),
            case.claim,
            case.pairs,
            n_samples=int(case.n_samples * share_of_samples),
            confidence=CONFIDENCE,
        )
        for seed in range(100, 100 + n_audits)
    ]


def summarize(name):
    case = {**planted.CORRECT, **planted.PLANTED}[name]
    verdicts = audit_with_seeds(case, N_AUDITS)
    losses = [verdict.loss for verdict in verdicts]
    print(f"{name}: {min(losses):.3f} to {max(losses):.3f}, {case.claim}", flush=True)
    return {
        "mechanism": name,
        "claim": str(case.claim),
        "samples per input": case.n_samples,
        "audits": N_AUDITS,
        "accused": sum(verdict.disproved for verdict in verdicts),
        "smallest certified loss": round(min(losses), 4),
        "largest certified loss": round(max(losses), 4),
        "event of the largest": max(verdicts, key=lambda v: v.loss).certificate.event,
    }


def distribution_of_picks(mechanism, counts, reach=10):
    return enumerate_outputs(
        lambda draws: tuple(mechanism.answer(list(counts), draws)), reach=reach
    )


def exact_epsilon_of_picks(make):
    """Return the largest exact epsilon over one and two picks and the pairs."""
    pairs = [
        (distribution_of_picks(make(n_picks), first), distribution_of_picks(make(n_picks), second))
        for n_picks in (1, 2)
        for first, second in PICKS_PAIRS
    ]
    return max(exact_epsilon(first, second) for first, second in pairs)


def summarize_picks(bug):
    counts = (3, 1, 0)
    distances = [
        exact_delta(
            distribution_of_picks(TopPicks(PICKS_EPSILON, n_picks), counts),
            distribution_of_picks(planted.BuggyPicks(PICKS_EPSILON, n_picks, bug), counts),
            0,
        )
        for n_picks in (1, 2)
    ]
    epsilon = exact_epsilon_of_picks(lambda n: planted.BuggyPicks(PICKS_EPSILON, n, bug))
    return {
        "bug": bug or "none",
        "claimed epsilon": PICKS_EPSILON,
        "exact epsilon, at least": round(epsilon, 4),
        "total variation from the printed distribution, at least": round(max(max(distances), 0), 4),
    }


def main(path):
    bugs = ["", *planted.PICKS_BUGS, *planted.PICKS_DEVIATIONS]
    with ProcessPoolExecutor(max_workers=4) as pool:
        correct = pool.map(summarize, planted.CORRECT)
        found = pool.map(summarize, planted.PLANTED)
        picks = pool.map(summarize_picks, bugs)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = {
        "content": "certified lower bounds; 99.9 % confidence for all correct mechanisms together",
        "command": "python -m tests.privacy.campaign docs/results/privacy/audit.json",
        "correct": list(correct),
        "picks, by enumeration": list(picks),
        "planted": list(found),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime),
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
