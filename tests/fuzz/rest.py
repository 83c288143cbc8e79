"""Send a real broker requests that are generated from its description of the REST API.

``python -m tests.fuzz.rest --inputs 100000`` prints a JSON object: the number of requests by status
code, and the faults. Schemathesis generates valid and invalid requests; some get the id of a stored
query, a valid object as query, or no token.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter, deque
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from tests.service.deployment import deployed, offered

TIMEOUT_S = 10
MAX_FAULTS = 100
KINDS = {"age": "number"}
SECTIONS = {
    "points": {"metric": "euclidean", "providers": ["north", "south"], "filters": KINDS},
    "words": {"metric": "edit", "providers": ["north", "south"]},
    "sets": {"metric": "jaccard", "providers": ["north", "south"]},
    "places": {"metric": "haversine", "providers": ["north"]},
    "nobody": {"metric": "edit", "providers": ["ghost"]},
    "private": {
        "metric": "euclidean",
        "providers": ["north", "south"],
        "algorithm": "dann*",
        "privacy": {"epsilon": 1.0, "delta": 1e-9, "grid_s": 0.0, "max_queries": 1000},
    },
}
VALID = {"points": [1.0, 2.0], "private": [1.0, 2.0], "words": "cot", "sets": ["a", 1]}
VALID |= {"places": [2.0, 48.0], "nobody": "cot"}
CHECKS = [
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.status_code_conformance,
    checks.response_schema_conformance,
]


@contextmanager
def broker(folder):
    """Run a broker and two providers with objects of several metrics."""
    with deployed(folder, SECTIONS, queries={"max_k": 100, "deadline_s": 5.0}) as running:
        for number, owner in enumerate(("north", "south")):
            rows = np.arange(24.0).reshape(12, 2)[number::2]
            columns = {"age": [*range(5), None]}
            offers = {
                "points": offered(
                    owner, "points", "euclidean", rows, columns=columns, filters=KINDS
                ),
                "words": offered(owner, "words", "edit", ["cat", "dog", "cart"]),
                "sets": offered(owner, "sets", "jaccard", [{"a", 1}, {"b"}]),
                "private": offered(owner, "private", "euclidean", rows, epoch=f"{number:032x}"),
            }
            if owner == "north":
                offers["places"] = offered(owner, "places", "haversine", np.array([[2.0, 48.0]]))
            running.start(owner, offers)
        running.wait("north", "south")
        yield running


class RestCampaign:
    """Sends generated requests, and keeps what is wrong with the answers."""

    def __init__(self, deployment, start):
        self._rng = random.Random(start)
        self._session = requests.Session()
        self._session.trust_env = False
        self._certificate = str(deployment.certificate)
        self._token = {"Authorization": f"Bearer {deployment.token}"}
        self._url = deployment.url
        self.statuses, self.faults = Counter(), {}
        self._ids = deque(maxlen=100)
        self.schema = schemathesis.openapi.from_url(
            f"{self._url}/openapi.json", verify=self._certificate
        )

    def run(self, inputs, start):
        """Send about a number of requests, equally many of each operation and kind."""
        operations = [found.ok() for found in self.schema.get_all_operations()]
        heavy = [one for one in operations if one.method == "post" and "{name}" in one.path]
        chosen = [*operations, *heavy, *heavy]  # bodies vary more than paths
        each = max(1, inputs // (2 * len(chosen)))
        for number, operation in enumerate(chosen):
            for mode in GenerationMode:
                strategy = operation.as_strategy(mode)
                test = given(strategy)(lambda case: self.send(case))
                limits = settings(
                    max_examples=each,
                    database=None,
                    deadline=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                with suppress(Unsatisfiable):  # without parameters, no request is invalid
                    seed(1000 * start + number)(limits(test))()

    def send(self, case):
        """Send a request; check the answer."""
        rng, headers = self._rng, dict(case.headers or {})
        is_known = rng.random() > 0.1
        if is_known:
            headers |= self._token
        else:
            headers.pop("Authorization", None)
        self._make_valid(case, headers)
        case.headers = headers
        started = time.monotonic()
        try:
            response = case.call(
                base_url=self._url,
                session=self._session,
                timeout=TIMEOUT_S,
                verify=self._certificate,
            )
        except requests.RequestException as error:
            self._add(case, f"{type(error).__name__} {error}"[:300])
            return
        if time.monotonic() - started > TIMEOUT_S:
            self._add(case, "too slow")
        self.statuses[response.status_code] += 1
        self._check(case, response, is_known)

    def _make_valid(self, case, headers):
        """Replace parts of a request by valid ones, so that it gets further."""
        rng, path = self._rng, case.path_parameters
        if path and "id" in path and self._ids and rng.random() < 0.5:
            path["id"] = rng.choice(self._ids)
        if not path or "name" not in path or rng.random() < 0.1:
            return
        path["name"] = name = rng.choice(sorted(SECTIONS))
        if isinstance(case.body, dict) and rng.random() < 0.7:
            case.body["query"] = VALID[name]
            for field in ("where", "algorithm", "radius", "k", "payload"):
                if field in case.body and rng.random() < 0.4:
                    del case.body[field]
        if case.operation.method == "post":
            if rng.random() < 0.2:
                headers["Prefer"] = "respond-async"
            if rng.random() < 0.2:
                headers["Idempotency-Key"] = str(rng.randrange(50))

    def _check(self, case, response, is_known):
        """Keep what is wrong with an answer."""
        content = response.content
        is_problem = "problem+json" in response.headers.get("content-type", [""])[0]
        if response.status_code >= 400 and is_problem:
            problem = json.loads(content)
            if problem["code"] == "internal" or not problem["code"]:
                self._add(case, f"problem {problem}")
            if problem["status"] != response.status_code:
                self._add(case, f"status of {problem}")
        elif response.status_code >= 400 and case.operation.path == "/match":
            problem = json.loads(content)  # in the form of the Matchmaker Exchange
            if not problem["message"] or problem["code"] == "internal":
                self._add(case, f"problem {problem}")
        elif response.status_code >= 400:
            self._add(case, f"{response.status_code} without a problem: {content[:100]!r}")
        elif not is_known and case.operation.definition.raw.get("security") != []:
            self._add(case, f"{response.status_code} without a token")
        if response.status_code == 202:
            self._ids.append(json.loads(content)["query_id"])
        # a schema of OpenAPI 3.1 is that of the whole stream, here it would be that of its events
        is_stream = case.operation.path.endswith("/events")
        try:
            case.validate_response(response, checks=CHECKS[:-1] if is_stream else CHECKS)
        except FailureGroup as group:
            for failure in group.exceptions:
                self._add(case, f"{type(failure).__name__}: {failure.message}"[:400])

    def _add(self, case, text):
        """Keep a fault, once for each operation and text."""
        key = f"{case.operation.label}: {text}"
        if key not in self.faults and len(self.faults) < MAX_FAULTS:
            self.faults[key] = case.as_curl_command()[:600]


def main():
    """Read the command line, and run a campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as deployment:
        campaign = RestCampaign(deployment, arguments.seed)
        campaign.run(arguments.inputs, arguments.seed)
    found = {
        "inputs": campaign.statuses.total(),
        "seconds": round(time.monotonic() - started, 1),
        "statuses": dict(sorted(campaign.statuses.items())),
        "faults": campaign.faults,
    }
    print(json.dumps(found, indent=1))
    return not campaign.faults


if __name__ == "__main__":
    sys.exit(not main())
