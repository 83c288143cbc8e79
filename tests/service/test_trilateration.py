"""The attack of a user who locates objects by distances from several places."""

import json
import math
import ssl

import httpx
import numpy as np
import pytest

from fedneighbors.service import ServiceError
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import PolicySection
from fedneighbors.service._offers import OfferedObjects
from tests.processes import LIMIT_S
from tests.service.deployment import deployed, offered

N_POINTS, N_COLUMNS, N_QUERIES = 300, 5, 9
rng = np.random.default_rng(0)
POINTS, QUERIES = rng.normal(size=(N_POINTS, N_COLUMNS)), rng.normal(size=(N_QUERIES, N_COLUMNS))
DISTANCES = np.sqrt(((QUERIES[:, np.newaxis] - POINTS) ** 2).sum(axis=2))
OPEN = {"level": "distances"}
POLICIES = {
    "open": {"north": OPEN, "south": OPEN},
    "closed": {"north": {}, "south": {}},
    "mixed": {"north": OPEN, "south": {}},
    "named": {"north": {"users": {"bob": OPEN}}, "south": OPEN | {"users": {"eve": {}}}},
}
VIEWS = {
    "viewed": {name: OPEN | {"views_per_day": 2} for name in ("north", "south")},
    "rounded": {name: OPEN | {"distance_step": 0.5} for name in ("north", "south")},
}
SECTIONS = {
    name: {"metric": "euclidean", "providers": ["north", "south"]} for name in POLICIES | VIEWS
}
ALGORITHMS = ("auto", "baseline", "dann", "eager", "hufu", "hufu+")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with deployed(folder, SECTIONS) as running:
        for number, provider in enumerate(["north", "south"]):
            log, offers = AccessLog(folder / f"{provider}.sqlite"), {}
            for name, policies in (POLICIES | VIEWS).items():
                policy = PolicySection.model_validate(policies[provider])
                ids = [str(row) for row in range(number, N_POINTS, 2)]
                one = offered(provider, name, "euclidean", POINTS[number::2], ids=ids)
                offers[name] = OfferedObjects(one.party, one.offer, policy=policy, log=log)
            running.start(provider, offers)
        running.wait("north", "south")
        yield running


def new_token(deployment, user):
    return deployment.broker.state.new_token(user, 1)


def solve(places, distances):
    """Return the point with distances from places.

    Differences of squared distances are linear in the point.
    """
    squares = distances**2
    left = 2 * (places[1:] - places[0])
    right = (places[1:] ** 2).sum(1) - (places[0] ** 2).sum() - squares[1:] + squares[0]
    return np.linalg.lstsq(left, right, rcond=None)[0]


def locate(seen):
    """Return the rows of the points that are recovered from distances by query."""
    recovered = set()
    for row, found in seen.items():
        places = QUERIES[list(found)]
        if len(found) > N_COLUMNS and np.allclose(
            solve(places, np.array(list(found.values()))), POINTS[row], atol=1e-6
        ):
            recovered.add(row)
    return recovered


def ask_neighbors(search):
    """Return the shown distances of the points by row and query."""
    seen = {}
    for number, query in enumerate(QUERIES):
        try:
            distances, objects = search.kneighbors([query], N_POINTS)
        except ServiceError as error:
            if error.code != "quota-spent":
                raise
            continue
        for one, distance in zip(objects[0], distances[0].tolist(), strict=True):
            if math.isfinite(distance):
                seen.setdefault(int(one.id), {})[number] = distance
    return seen


@pytest.mark.parametrize(
    ("collection", "user", "n_located"),
    [
        ("open", "alice", N_POINTS),
        ("closed", "alice", 0),
        ("mixed", "alice", 0),
        ("named", "alice", 0),
        ("named", "bob", N_POINTS),
        ("named", "eve", 0),
        ("viewed", "alice", 0),
        ("rounded", "alice", 0),
    ],
)
def test_distances_locate_objects_where_owners_show_them(deployment, collection, user, n_located):
    with deployment.client(collection, token=new_token(deployment, user)) as search:
        seen = ask_neighbors(search)
        steps = search.describe()["distance_steps"]
    assert len(locate(seen)) == n_located
    if collection not in VIEWS:  # otherwise, some are shown
        assert len(seen) == n_located
        assert (None in steps.values()) == (n_located == 0)


@pytest.mark.parametrize("collection", ["closed", "mixed"])
def test_no_radius_is_accepted_where_no_distance_is_shown(deployment, collection):
    with deployment.client(collection) as search:
        for radius in (0.0, 1.5, 1e300):
            for ask in (search.radius_neighbors, search.count):
                with pytest.raises(ServiceError, match="not-allowed"):
                    ask(QUERIES[:1], radius)


def test_radii_locate_objects_where_owners_show_distances(deployment):
    row, seen = 7, {}
    with deployment.client("open") as search:
        for number, query in enumerate(QUERIES):
            low, high = 0.0, 16.0
            for _ in range(30):  # no distance is read
                objects = search.radius_neighbors([query], (low + high) / 2, return_distance=False)[
                    0
                ]
                is_inside = any(one.id == str(row) for one in objects)
                low, high = (low, (low + high) / 2) if is_inside else ((low + high) / 2, high)
            seen[number] = high
    assert locate({row: seen}) == {row}


def numbers_of(value):
    """Yield all numbers in JSON."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers_of(one)
    elif isinstance(value, int | float):
        yield float(value)


def find_distances(answers, query):
    """Return the numbers of answers that are distances of a query."""
    numbers = np.fromiter(numbers_of(answers), np.float64)
    return numbers[np.isclose(numbers[:, np.newaxis], DISTANCES[query], 1e-9, 0).any(axis=1)]


def ask_everything(deployment, collection):
    """Return all that a user gets to see of the first query, and the refused requests."""
    context = ssl.create_default_context(cafile=str(deployment.certificate))
    headers = {"Authorization": f"Bearer {deployment.token}"}
    later = {"Prefer": "respond-async"}
    seen, refused = [], []
    path, query = f"/v1/collections/{collection}", QUERIES[0].tolist()
    with httpx.Client(
        base_url=deployment.url, headers=headers, verify=context, timeout=LIMIT_S
    ) as client:
        seen.append(client.get(path).json())
        for kind, body in (
            *[("search", {"k": N_POINTS - 1, "algorithm": one}) for one in ALGORITHMS],
            ("search", {"radius": 2.0}),
            ("count", {"radius": 2.0}),
            ("explain", {"k": N_POINTS - 1}),
        ):
            content = json.dumps({"query": query, **body})
            answer = client.post(f"{path}/{kind}", content=content)
            lines = client.post(
                f"{path}/{kind}", content=content, headers={"Content-Type": "application/x-ndjson"}
            )
            seen += [answer.json(), *map(json.loads, lines.text.splitlines())]
            if answer.status_code == 403:
                refused.append(body)
            address = client.post(f"{path}/{kind}", content=content, headers=later).headers
            events = client.get(f"{address['location']}/events").text
            seen += [
                json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ")
            ]
            seen.append(client.get(address["location"]).json())
        seen.append(client.get("/v1/audit").json())
    return seen, refused


@pytest.mark.parametrize("collection", ["closed", "mixed"])
def test_nothing_that_is_sent_contains_a_distance(deployment, collection):
    seen, refused = ask_everything(deployment, collection)
    assert find_distances(seen, 0).size == 0
    assert [one.get("algorithm", "radius") for one in refused] == [
        "hufu",
        "hufu+",
        "radius",
        "radius",
    ]
    certified = [one for one in seen if "first" in one]
    assert certified
    assert all(one["distance"] is None for event in certified for one in event["neighbors"])


def test_all_that_is_sent_contains_distances_if_shown(deployment):
    seen, refused = ask_everything(deployment, "open")
    assert len(set(find_distances(seen, 0))) == N_POINTS - 1
    assert refused == []


def test_orders_alone_locate_objects_roughly(deployment):
    with deployment.client("closed") as search:
        objects = search.kneighbors(QUERIES, N_POINTS, return_distance=False)
    # the user knows the distribution: the rank of an object is about its distance
    sample = np.random.default_rng(1).normal(size=(10 * N_POINTS, N_COLUMNS))
    expected = np.sort(np.sqrt(((QUERIES[:, np.newaxis] - sample) ** 2).sum(axis=2)))[:, 5::10]
    distances = np.empty((N_QUERIES, N_POINTS))
    for number, found in enumerate(objects):
        distances[number, [int(one.id) for one in found]] = expected[number]
    points, ranks = (
        np.stack([solve(QUERIES, one) for one in distances.T]),
        distances.argsort(axis=1),
    )
    ranks = ranks.argsort(axis=1)
    for _ in range(200):  # to the distances that the estimates have at these ranks
        steps = points - QUERIES[:, np.newaxis]
        estimated = np.linalg.norm(steps, axis=2)
        targets = np.take_along_axis(np.sort(estimated, axis=1), ranks, axis=1)
        moves = (targets / estimated - 1)[:, :, np.newaxis] * steps
        points = points + N_COLUMNS / 2 * moves.mean(axis=0)
    errors = np.linalg.norm(points - POINTS, axis=1)
    assert errors.min() > 1e-3
    assert 0.05 < np.median(errors) < 0.15  # the coordinates have a standard deviation of 1
