"""DANN* finds the k nearest with noisy counts; its messages have a fixed size."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import PartyRefused, ProtocolError, WireError
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._messages import encode
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.private._noise import CountNoise
from fedneighbors.methods.fedknn.private.protocol import dann_star, dann_star_in_two
from tests.methods.fedknn.federations import KEY, BoundedLine, Federation, federations
from tests.methods.fedknn.private.liars import LIES, Liar, alter, bounds_only, stop_early
from tests.naive.fedknn import nearest
from tests.seeds import cases


def result_of(answer):
    merged = answer.merged
    return list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))


def seeded_noise(noise, seed):
    """Return a noise source with seeded random bytes."""
    bits = random.Random(seed).randbytes
    return lambda epoch, names: dict(zip(names, noise.draw_all(len(names), bits=bits), strict=True))


def make_noise(federation, epsilon, *, promise="exact", **options):
    delta = "1e-6" if promise == "exact" else 0
    return CountNoise(
        epsilon,
        delta,
        n_providers=len(federation.tables),
        k=federation.k,
        promise=promise,
        **options,
    )


EPSILONS = st.sampled_from(["0.01", 1, 8, 1000])


@settings(max_examples=cases(600), deadline=None)
@given(federations(), EPSILONS, st.integers(0, 2**32))
def test_exact_answers_equal_the_naive_search(federation, epsilon, seed):
    noise = seeded_noise(make_noise(federation, epsilon), seed)

    answer = federation.search(dann_star, noise_of=noise)

    assert result_of(answer) == nearest(federation.tables, federation.query, federation.k, key=KEY)
    assert answer.exact
    assert all(n <= federation.k for n in answer.n_returned.values())


@settings(max_examples=cases(600), deadline=None)
@given(federations(), EPSILONS, st.sampled_from(["0.05", "0.9"]), st.integers(0, 2**32))
def test_certified_answers_are_exact_or_flagged(federation, epsilon, failure, seed):
    noise = seeded_noise(
        make_noise(federation, epsilon, promise="certified", failure=failure), seed
    )

    answer = federation.search(dann_star, noise_of=noise, always_exact=False)

    expected = nearest(federation.tables, federation.query, federation.k, key=KEY)
    assert not answer.exact or result_of(answer) == expected


@settings(max_examples=cases(400), deadline=None)
@given(federations(), EPSILONS, st.sampled_from(["exact", "certified"]), st.integers(0, 2**32))
def test_two_exchanges_give_exact_or_flagged_answers(federation, epsilon, promise, seed):
    noise = make_noise(federation, epsilon, promise=promise, has_public_first=True)

    answer = federation.search(
        dann_star_in_two,
        first=noise.public_first,
        noise_of=seeded_noise(noise, seed),
        always_exact=promise == "exact",
    )

    expected = nearest(federation.tables, federation.query, federation.k, key=KEY)
    assert result_of(answer) == expected or not answer.exact
    assert answer.exact or promise == "certified"
    assert all(n <= federation.k for n in answer.n_returned.values())


def message_sizes(federation, noise):
    """Return the lengths of all messages of a query by class."""
    sizes = {}

    class Recording:
        def __init__(self, inner):
            self.inner, self.name, self.accepts = inner, inner.name, inner.accepts

        def answer(self, request):
            reply = self.inner.answer(request)
            for item in (request, reply):
                sizes.setdefault(type(item).__name__, []).append(len(encode(item)))
            return reply

    recording = [Recording(provider) for provider in federation.providers()]
    coordinator = dann_star(repr(federation.query).encode(), federation.k, name="q", noise_of=noise)
    run(coordinator, recording)
    return sizes


def test_message_sizes_do_not_depend_on_the_providers_data():
    few = Federation({"p0": [], "p1": [1.0], "p2": [5.0] * 40}, 3.0, 6, BoundedLine(0.5, 1))
    many = Federation({f"p{i}": [float(i)] * 30 for i in range(3)}, 3.0, 6, BoundedLine(0.0, 1))

    sizes = [
        message_sizes(federation, seeded_noise(make_noise(federation, 1), 0))
        for federation in (few, many)
    ]

    for kind in sizes[0]:
        assert len({*sizes[0][kind], *sizes[1][kind]}) == 1, kind


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_provider_that_breaks_the_protocol_is_named(lie):
    tables = {"p0": [1.0, 2.0, 3.0, 4.0, 5.0], "p1": [1.5, 2.5, 3.5, 4.5]}
    federation = Federation(tables, 0.0, 4, BoundedLine(0.0, 1))
    honest = federation.providers()
    providers = [Liar(honest[0], LIES[lie]), honest[1]]
    coordinator = dann_star(
        b"0.0", 4, name="q", noise_of=seeded_noise(make_noise(federation, 1000), 0)
    )

    with pytest.raises((ProtocolError, WireError), match="party 'p0'"):
        run(coordinator, providers)


def constant_noise(first, second):
    """Return the same noise on the counts of every provider."""
    return lambda epoch, providers: dict.fromkeys(providers, (first, second))


SHORT = Federation({"p0": [1.0, 2.0, 3.0, 4.0], "p1": [11.5, 12.5]}, 0.0, 4, BoundedLine(0.0, 1))


def test_a_provider_that_returns_too_few_objects_is_named():
    honest = SHORT.providers()

    with pytest.raises(ProtocolError, match=r"'p0'.*more are left"):
        run(
            dann_star(b"0.0", 4, name="q", noise_of=constant_noise(0, 0)),
            [Liar(honest[0], stop_early), honest[1]],
        )


def test_a_count_that_is_too_low_fails_the_certificate():
    with pytest.raises(ProtocolError, match="not certified"):
        SHORT.search(dann_star, noise_of=constant_noise(-3, -9))

    answer = SHORT.search(dann_star, noise_of=constant_noise(-3, -9), always_exact=False)

    assert not answer.exact
    assert result_of(answer)[0] == (1.0, "p0", "0")


def test_names_that_differ_by_a_final_zero_byte_are_distinct():
    metric = FunctionMetric(lambda a, b: abs(a - b))
    provider = Provider.of("p", [1.0, 2.0], metric, decode=float, ids=["a", "a\0"])

    answer = run(dann_star(b"0.0", 2, name="q", noise_of=constant_noise(-1, 0)), [provider]).result

    assert answer.merged.ids == ("a", "a\0")


def test_other_bounds_in_the_same_epoch_get_other_noise():
    epochs = []

    def noise_of(epoch, providers):
        epochs.append(epoch)
        return dict.fromkeys(providers, (0, 0))

    honest = SHORT.providers()
    lower = Liar(honest[1], bounds_only(lambda r: alter(r, bounds=r.bounds * 0.5)))
    for number, providers in enumerate((honest, honest, [honest[0], lower])):
        run(dann_star(b"0.0", 4, name=f"q{number}", noise_of=noise_of), providers)

    assert epochs[0] == epochs[1] != epochs[2]


def test_a_name_too_long_for_a_reply_is_refused_before_search():
    provider = Provider.of(
        "p0", [1.0], BoundedLine(0.0, 1), decode=lambda raw: float(raw), ids=["x" * 65]
    )

    with pytest.raises(PartyRefused, match="a name is too long"):
        run(dann_star(b"0.0", 1, name="q", noise_of=constant_noise(0, 0)), [provider])


def test_k_may_be_far_above_the_number_of_objects():
    k = 3000
    federation = replace(SHORT, k=k)

    answer = federation.search(dann_star, noise_of=constant_noise(k, 0))

    assert result_of(answer) == nearest(federation.tables, 0.0, k, key=KEY)
