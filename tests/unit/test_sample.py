"""Do samples order, digest and group as every storage counts on?"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import (
    DIGEST_BYTES,
    Identity,
    Kind,
    Qos,
    Sample,
    SampleBatch,
    SourceId,
    Stream,
    is_zid,
    sample_digest,
)
from durable_cache.testing.samples import SOURCE, filled, run, sample
from durable_cache.testing.strategies import qualities, samples, sources

few = st.builds(
    Sample,
    st.sampled_from(["a", "b"]),
    st.sampled_from([SourceId("f", 2), SourceId("10", 10)]),
    st.integers(0, 1),
    st.integers(0, 5),
    st.binary(max_size=2),
)


@given(samples, samples)
def test_identity_order_is_bytes_then_numbers(one: Sample, two: Sample) -> None:
    def parts(s: Sample) -> tuple[object, ...]:
        return s.key.encode(), int(s.source.zid, 16), s.source.eid, s.epoch, s.sn

    assert one.order == parts(one)
    assert (one.order == two.order) == (one.identity == two.identity)
    assert one.time_order[:2] == (one.ntp64, int(one.timestamp_id or "0", 16))
    assert one.time_order[2:] == one.order


def test_the_order_is_neither_code_units_nor_text() -> None:
    keys = ["a", "a!", "a/b", "b", "\uff5e", "\U0001f980"]
    made = [sample(key=key) for key in keys]
    assert sorted(made[3:] + made[:3], key=lambda s: s.order) == made
    sources = [SourceId("f", 2), SourceId("f", 10), SourceId("10", 1)]
    made = [sample(source=source) for source in sources]
    assert sorted(made[1:] + made[:1], key=lambda s: s.order) == made
    assert sorted(made[1:] + made[:1], key=lambda s: s.stream.order) == made


@given(samples, samples)
def test_the_digest_differs_where_the_content_does(one: Sample, two: Sample) -> None:
    def content(s: Sample) -> tuple[object, ...]:
        return s.kind, s.encoding, s.payload, s.attachment

    assert (sample_digest(one) == sample_digest(two)) == (content(one) == content(two))
    assert len(sample_digest(one)) == DIGEST_BYTES


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"attachment": None}, {"attachment": b""}),
        ({"payload": b"ab", "attachment": b"c"}, {"payload": b"a", "attachment": b"bc"}),
        ({"encoding": "ab", "payload": b"c"}, {"encoding": "a", "payload": b"bc"}),
        ({"encoding": "é", "payload": b"x"}, {"encoding": "Ã", "payload": b"\xa9x"}),
        ({"kind": Kind.PUT, "payload": b""}, {"kind": Kind.DELETE, "payload": b""}),
        ({"payload": b"1;"}, {"payload": b";1"}),
    ],
)
def test_the_digest_is_not_fooled_by_where_fields_end(
    one: dict[str, object], two: dict[str, object]
) -> None:
    left, right = (msgspec.structs.replace(sample(), **fields) for fields in (one, two))
    assert sample_digest(left) != sample_digest(right)


alike = st.builds(
    Sample,
    st.just("a"),
    st.sampled_from([SOURCE, SourceId("f", 2)]),
    st.just(0),
    st.integers(0, 9),
    st.sampled_from([b"", b"1", b"22", b"3" * 2000]),
    st.sampled_from(Kind),
    st.sampled_from(["zenoh/bytes", "text/plain"]),
    st.sampled_from([None, b"", b"4"]),
)


@given(st.lists(alike, max_size=8))
def test_the_digest_does_not_depend_on_what_comes_before(made: list[Sample]) -> None:
    assert SampleBatch(made).digests == [sample_digest(one) for one in made]


def test_a_bare_copy_has_the_digests_that_are_made_later() -> None:
    batch = SampleBatch(run(0, 2))
    bare = batch.bare()
    assert batch.digests is bare.digests


@given(st.lists(alike, max_size=8))
def test_the_samples_of_each_source_keep_their_order(made: list[Sample]) -> None:
    batch = SampleBatch(made)
    groups = batch.by_source()
    assert list(groups) == list(batch.sources) == list(dict.fromkeys(one.source for one in made))
    for source, group in groups.items():
        assert list(group) == [one for one in made if one.source == source]


def test_the_digest_takes_no_note_of_the_route() -> None:
    one = filled()
    again = msgspec.structs.replace(
        one, ntp64=1, timestamp_id="a", stamped=False, qos=0, received_ns=1, sn=99, key="other"
    )
    assert sample_digest(one) == sample_digest(again)


def test_the_digest_does_not_change_between_releases() -> None:
    """Caches compare digests over the network and with what was stored long ago."""
    assert sample_digest(filled()).hex() == "ff06ba6aa744b13fe33de52691448dcf"


@given(sources)
def test_a_source_comes_back_from_its_text(source: SourceId) -> None:
    assert SourceId.parse(str(source)) == source
    assert is_zid(source.zid)


@pytest.mark.parametrize(
    "text", ["", ":", "a", "a:", ":1", "A:1", "0a:1", "a:01", "a:+1", "a:1 ", f"a:{1 << 32}", "a:²"]
)
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"source_id|eid"):
        SourceId.parse(text)


@given(qualities)
def test_qos_comes_back_from_its_number(packed: int) -> None:
    assert Qos.unpack(packed).pack() == packed
    assert 0 < packed < 64


def test_the_default_qos_is_zenohs() -> None:
    assert Qos.unpack(sample().qos) == Qos(priority=5, congestion=1, express=False)


def test_names_of_a_sample() -> None:
    one = sample(7, "k", epoch=3)
    assert one.stream == Stream("k", SOURCE, 3)
    assert one.identity == Identity("k", SOURCE, 3, 7)
    assert one.sequence == 3 << 35 | 8
    assert one.size >= len(one.payload) + len(one.key)
    assert filled().size - sample(0).size == len(filled().attachment or b"")


@given(st.lists(few, max_size=20))
def test_a_batch_groups_by_stream_in_batch_order(made: list[Sample]) -> None:
    batch = SampleBatch(iter(made))
    assert list(batch) == made
    assert len(batch) == len(made)
    assert batch.digests == [sample_digest(s) for s in made]
    assert batch.size == sum(s.size for s in made)
    streams = {s.stream for s in made}
    assert set(batch.by_stream) == streams
    assert set(batch.summaries) == streams
    for stream in streams:
        group = [s for s in made if s.stream == stream]
        assert batch.by_stream[stream] == group
        found = batch.summaries[stream]
        assert found.runs == RangeSet.of(s.sn for s in group)
        assert found.newest_ntp64 == max(s.ntp64 for s in group)
        assert found.newest_published_ntp64 == max([s.ntp64 for s in group if not s.stamped] + [0])
        assert found.newest_received_ns == max(s.received_ns for s in group)


def test_batches_compare_by_their_samples() -> None:
    assert SampleBatch(run(0, 3)) == SampleBatch(run(0, 3)) != SampleBatch(run(0, 2))
    assert repr(SampleBatch(run(0, 3))) == "SampleBatch(4 samples)"


@given(st.lists(few, max_size=20), st.integers(0, 20), st.booleans())
def test_joined_batches_are_one_batch(made: list[Sample], cut: int, asked: bool) -> None:
    parts = [SampleBatch(made[:cut]), SampleBatch(), SampleBatch(made[cut:])]
    if asked:
        assert parts[0].digests == [sample_digest(s) for s in made[:cut]]
    joined = SampleBatch.joined(parts)
    assert joined == SampleBatch(made)
    assert joined.digests == SampleBatch(made).digests
    assert joined.by_stream == SampleBatch(made).by_stream
