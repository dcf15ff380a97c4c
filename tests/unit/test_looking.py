"""Are a storage's keys, sources and samples shown page by page, bounded and as they are?"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from durable_cache import ReliabilityCache, declare_reliability_cache, open_session
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Kind, Sample, SampleBatch, Skip, SourceId
from durable_cache.model.unnumbered import identified
from durable_cache.service.looking import Looking
from durable_cache.service.payloads import payload_text
from durable_cache.service.rates import Rates
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.index_pages import keys_page, numberings_page, streams_of
from durable_cache.testing.samples import stamp

ONE, TWO = SourceId("ab", 1), SourceId("cd", 2)


def sample(key: str, sn: int, payload: bytes = b"x", **named: Any) -> Sample:
    given = {"source": ONE, "epoch": 1, "ntp64": stamp(sn), "encoding": "text/plain", **named}
    return Sample(key, given.pop("source"), given.pop("epoch"), sn, payload, **given)


@pytest.fixture
def cache() -> Iterator[ReliabilityCache]:
    session = open_session({"scouting": {"multicast": {"enabled": False}}, "mode": "peer"})
    try:
        with declare_reliability_cache(session, "**") as it:
            yield it
    finally:
        session.close()  # type: ignore[no-untyped-call]


def rows(page: dict[str, object]) -> list[dict[str, Any]]:
    found = page["rows"]
    assert isinstance(found, list)
    return found


def test_keys_come_in_pages_with_their_newest_values(cache: ReliabilityCache) -> None:
    cache.store.commit(
        SampleBatch([sample(f"k/{n}", n, f"v{n}".encode()) for n in range(5)] + [sample("k/0", 9)])
    )
    looking = Looking()
    first = looking.keys(cache, {"limit": "3"})
    assert [(row["key"], row["value"], row["samples"]) for row in rows(first)] == [
        ("k/0", "x", 2),
        ("k/1", "v1", 1),
        ("k/2", "v2", 1),
    ]
    second = looking.keys(cache, {"limit": "3", "after": str(first["next"])})
    assert [row["key"] for row in rows(second)] == ["k/3", "k/4"]
    assert second["next"] is None
    named = looking.keys(cache, {"key_expr": "*/4"})
    assert [row["key"] for row in rows(named)] == ["k/4"]
    of_nobody = looking.keys(cache, {"source": str(TWO)})
    assert rows(of_nobody) == []


def test_a_new_value_is_seen_and_one_that_cannot_be_read_says_why(
    cache: ReliabilityCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = Looking()
    for sn, payload in enumerate((b"one", b"two")):
        cache.store.commit(SampleBatch([sample("k", sn, payload)]))
        (row,) = rows(looking.keys(cache, {}))
        assert row["value"] == payload.decode()
    cache.store.commit(SampleBatch([sample("k", 2)]))
    cache.store.backend.close()
    (row,) = rows(looking.keys(cache, {}))
    assert "closed" in row["error"]
    assert "value" not in row


def test_sources_tell_what_is_missing_and_what_was_given_up(cache: ReliabilityCache) -> None:
    found = [sample("k", sn) for sn in (0, 1, 5, 9)] + [sample("j", 0, source=TWO)]
    cache.store.commit(SampleBatch(found), (Skip(ONE, 1, 2, 3),))
    looking = Looking()
    page = looking.sources(cache, {"limit": "1"})
    (row,) = rows(page)
    assert (row["source"], row["samples"], row["given_up_runs"]) == (str(ONE), 4, "2..3")
    assert (row["missing"], row["missing_runs"]) == (4, "4, 6..8")
    (other,) = rows(looking.sources(cache, {"after": str(page["next"])}))
    assert (other["source"], other["missing"]) == (str(TWO), 0)
    (of_key,) = rows(looking.sources(cache, {"key": "j"}))
    assert of_key["source"] == str(TWO)


def test_samples_come_the_newest_first_and_go_on_further_back(cache: ReliabilityCache) -> None:
    cache.store.commit(SampleBatch([sample("k", sn, str(sn).encode()) for sn in range(5)]))
    looking = Looking()
    seen: list[int] = []
    after = ""
    while True:
        page = looking.samples(cache, {"key": "k", "limit": "2", "after": after})
        seen += [row["sn"] for row in rows(page)]
        if page["next"] is None:
            break
        after = str(page["next"])
    assert seen == [4, 3, 2, 1, 0]
    newest = rows(looking.samples(cache, {"key": "k", "limit": "1"}))[0]
    (same,) = rows(looking.samples(cache, {"key": "k", "at": newest["ntp64"]}))
    assert same["value"] == "4"


def test_samples_without_a_number_are_counted_and_shown(cache: ReliabilityCache) -> None:
    plain = identified(sample("k", 0, source=SourceId("ef", 7), timestamp_id="ef"))
    assert plain is not None
    cache.store.commit(SampleBatch([plain]))
    looking = Looking()
    assert [row["samples"] for row in rows(looking.keys(cache, {}))] == [1]
    (source,) = rows(looking.sources(cache, {"key": "k"}))
    assert (source["source"], source["samples"], source["last"]) == ("ef:0", 1, None)
    (shown,) = rows(looking.samples(cache, {"key": "k"}))
    assert shown["sn"] is None


@pytest.mark.parametrize(
    ("what", "parameters", "said"),
    [
        ("keys", {"limit": "many"}, "limit='many'"),
        ("keys", {"key_expr": "a//b"}, "a//b"),
        ("keys", {"source": "zz"}, "zz"),
        ("sources", {"after": "nowhere"}, "after='nowhere'"),
        ("samples", {}, "empty"),
        ("samples", {"key": "a/*"}, "name one key"),
        ("samples", {"key": "a", "chars": "-1"}, "chars='-1'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    cache: ReliabilityCache, what: str, parameters: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        getattr(Looking(), what)(cache, parameters)


def test_an_answer_is_bounded_however_large_the_payloads(cache: ReliabilityCache) -> None:
    large = b"\xff" * 200_000
    cache.store.commit(SampleBatch([sample("k", sn, large) for sn in range(60)]))
    page = Looking().samples(cache, {"key": "k", "limit": "1000", "chars": "99999"})
    assert len(json.dumps(page)) < 1_000_000
    assert 0 < len(rows(page)) < 60
    assert page["next"] is not None, "the rest is for the next page"


def test_a_page_of_an_expression_that_names_few_says_where_to_go_on() -> None:
    index = StreamIndex()
    names = [f"k/{n:06d}" for n in range(25_000)] + ["k/z"]
    index.record(SampleBatch([sample(name, sn) for sn, name in enumerate(names)]))
    found, after = keys_page(index, KeyExpression("*/z"), None, "", 10)
    assert (found, after) == ([], "k/019999")
    assert keys_page(index, KeyExpression("*/z"), None, after, 10) == (["k/z"], None)
    assert keys_page(index, KeyExpression("k/024$*"), None, "", 10) != ([], None)
    assert len(numberings_page(index, None, None, ("", -1, -1), 10)) == 1
    (look,) = streams_of(index, "k/z", 10)
    assert (look.samples, look.held) == (1, RangeSet([(25_000, 25_000)]))
    index.close()


def test_keys_with_odd_characters_are_found_where_they_are() -> None:
    index = StreamIndex()
    names = ["a\x00b", "a\x1bb", "a\U0010ffffb", "aé", "z"]
    index.record(SampleBatch([sample(name, sn) for sn, name in enumerate(names)]))
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        found, after = keys_page(index, KeyExpression("a$*"), None, after, 1)
        seen += found
    assert sorted(seen) == sorted(names[:-1])
    index.close()


def test_a_rate_is_that_between_two_looks() -> None:
    rates = Rates(names_max=2)
    assert rates.per_second("a", 10, lambda sn: 99, 0.0) is None
    assert rates.per_second("a", 20, lambda sn: 20 - sn, 2.0) == 5.0
    assert rates.per_second("a", 30, lambda sn: 30 - sn, 2.1) == 5.0, "asked again at once"
    assert rates.per_second("a", 20, lambda sn: 99, 4.0) == 0.0
    assert rates.per_second("a", 90, lambda sn: 99, 100.0) is None, "nobody looked for long"
    for name in "bc":
        rates.per_second(name, 1, lambda sn: 1, 101.0)
    assert rates.per_second("a", 90, lambda sn: 99, 102.0) is None, "bounded"


@pytest.mark.parametrize(
    ("payload", "encoding", "shown"),
    [
        (b"21.5", "text/plain", ("text", "21.5")),
        (b'{"a":\n1}', "application/json", ("json", '{"a": 1}')),
        (b"{broken", "application/json", ("json", "{broken")),
        (struct.pack("<d", 2.5), "zenoh/bytes;f64", ("number", "2.5")),
        (struct.pack("<i", -3), "zenoh/bytes;i32", ("number", "-3")),
        (b"\xff\x00", "text/plain", ("bytes", "ff 00")),
        (b"plain", "zenoh/bytes", ("text", "plain")),
        (b"a\x00b", "zenoh/bytes", ("bytes", "61 00 62")),
        (b"", "zenoh/bytes", ("text", "")),
        (b"x" * 500, "text/plain", ("text", "x" * 19 + "…")),
        ("é".encode() * 500, "text/plain", ("text", "é" * 19 + "…")),
    ],
)
def test_payloads_are_decoded_by_their_encoding(
    payload: bytes, encoding: str, shown: tuple[str, str]
) -> None:
    assert payload_text(payload, encoding, 20) == shown


def test_a_delete_has_no_payload(cache: ReliabilityCache) -> None:
    cache.store.commit(SampleBatch([sample("k", 0, b"", kind=Kind.DELETE)]))
    (row,) = rows(Looking().samples(cache, {"key": "k"}))
    assert (row["kind"], row["form"], row["value"]) == ("delete", "", "")
