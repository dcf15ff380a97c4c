"""Does retention let go prefixes only, and no more than it must? The model drops one at a time."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from durable_cache.model.sample import Sample, Stream
from durable_cache.storage.contract import Retention
from durable_cache.storage.shared.retention import floors_of, stored_bytes
from durable_cache.testing.samples import filled, run, sample

SECOND_NS = 10**9
NOW_NS = 100 * SECOND_NS

stored = st.lists(
    st.builds(
        sample,
        st.integers(0, 12),
        st.sampled_from(["a", "b", "c"]),
        payload=st.binary(max_size=6),
        received_ns=st.integers(0, 100).map(lambda seconds: seconds * SECOND_NS),
    ),
    max_size=30,
    unique_by=lambda one: one.identity,
).map(lambda made: grouped(made))
limits = st.builds(
    Retention,
    st.none() | st.integers(0, 100).map(float),
    st.none() | st.integers(0, 14),
    st.none() | st.integers(0, 80),
)


def grouped(made: list[Sample]) -> dict[Stream, list[Sample]]:
    streams: dict[Stream, list[Sample]] = {}
    for one in sorted(made, key=lambda one: one.sn):
        streams.setdefault(one.stream, []).append(one)
    return streams


def model(stored: dict[Stream, list[Sample]], limits: Retention) -> dict[Stream, list[Sample]]:
    """Drop heads one by one while a limit is broken."""
    left = {stream: list(samples) for stream, samples in stored.items()}
    for samples in left.values():
        while limits.samples_max is not None and len(samples) > limits.samples_max:
            samples.pop(0)
        while (
            limits.age_seconds_max is not None
            and samples
            and samples[0].received_ns < NOW_NS - limits.age_seconds_max * SECOND_NS
        ):
            samples.pop(0)
    while limits.bytes_max is not None:
        if (
            sum(len(one.payload) for samples in left.values() for one in samples)
            <= limits.bytes_max
        ):
            break
        heads = [samples for samples in left.values() if samples]
        min(heads, key=lambda samples: (samples[0].received_ns, samples[0].stream.order)).pop(0)
    return left


@given(stored, limits)
def test_exactly_what_must_go_goes(stored: dict[Stream, list[Sample]], limits: Retention) -> None:
    floors = {floor.stream: floor.sn for floor in floors_of(stored, limits, NOW_NS)}
    left = model(stored, limits)
    assert set(floors) == {s for s, samples in stored.items() if len(left[s]) < len(samples)}
    for stream, samples in stored.items():
        assert [one for one in samples if one.sn >= floors.get(stream, 0)] == left[stream]


@given(stored, limits)
def test_a_second_time_nothing_goes(stored: dict[Stream, list[Sample]], limits: Retention) -> None:
    # A limit of bytes may uncover samples that are too old: they go with the next trim.
    assume(limits.bytes_max is None or limits.age_seconds_max is None)
    floors = {floor.stream: floor.sn for floor in floors_of(stored, limits, NOW_NS)}
    left = grouped(
        [
            one
            for samples in stored.values()
            for one in samples
            if one.sn >= floors.get(one.stream, 0)
        ]
    )
    assert floors_of(left, limits, NOW_NS) == []


def test_the_floor_is_the_first_number_that_stays() -> None:
    streams = grouped([*run(0, 3), *run(10, 12)])
    (stream,) = streams
    assert floors_of(streams, Retention(samples_max=3), 0) == [(stream, 10)]
    assert floors_of(streams, Retention(samples_max=0), 0) == [(stream, 13)]
    assert floors_of(streams, Retention(samples_max=7), 0) == []
    assert floors_of(streams, Retention(), 0) == []


def test_the_sample_of_just_the_greatest_age_stays() -> None:
    streams = grouped([sample(n, received_ns=NOW_NS - (9 - n) * SECOND_NS) for n in range(10)])
    (stream,) = streams
    assert floors_of(streams, Retention(age_seconds_max=4), NOW_NS) == [(stream, 5)]
    assert floors_of(streams, Retention(age_seconds_max=3.999_999_999), NOW_NS) == [(stream, 6)]
    assert floors_of(streams, Retention(age_seconds_max=0), NOW_NS) == [(stream, 9)]


def test_bytes_that_just_fit_stay() -> None:
    streams = grouped([sample(n, payload=b"abc") for n in range(4)])
    (stream,) = streams
    assert floors_of(streams, Retention(bytes_max=12), NOW_NS) == []
    assert floors_of(streams, Retention(bytes_max=11), NOW_NS) == [(stream, 1)]
    assert floors_of(streams, Retention(bytes_max=0), NOW_NS) == [(stream, 4)]


def test_bytes_are_payload_and_attachment() -> None:
    one = filled()
    assert stored_bytes(one) == len(one.payload) + len(one.attachment or b"")
    assert stored_bytes(sample(payload=b"abc")) == 3


def test_unlimited_says_so() -> None:
    assert Retention().unlimited
    assert not Retention(samples_max=0).unlimited
    assert not Retention(bytes_max=0).unlimited
    assert not Retention(age_seconds_max=0).unlimited
