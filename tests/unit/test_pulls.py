"""What is asked for until it came, what is believed of an answer, and when nobody has a number."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from durable_cache.model.ranges import RangeSet
from durable_cache.model.run_name import RunName
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.alignment import AlignerOptions, CacheProfile, StreamLoaded
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.packing import Entry
from durable_cache.protocol.alignment.pulls import Pulls
from durable_cache.protocol.alignment.wire import Lane, PullReply
from durable_cache.protocol.wire import Incarnation, encode_batch

STREAM = Stream("a/b", SourceId("ab12", 7), 5)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(OPTIONS, CacheProfile("one", "1", ("a/**",)))
    ledger.load([StreamLoaded(STREAM, RangeSet([(0, 9)]))])
    return ledger


@pytest.fixture
def pulls(ledger: Ledger) -> Pulls:
    """Pulls from a peer that said that a token named the run."""
    ledger.hear_names([Incarnation(STREAM.source, STREAM.epoch, "0a0a0a0a")])
    pulls = Pulls(ledger, "peer", OPTIONS)
    pulls.name(place_of(ledger), STREAM)
    return pulls


OPTIONS = AlignerOptions(page_samples_max=20)


def place_of(ledger: Ledger) -> int:
    return ledger.place(STREAM)


def samples(*sns: int, key: str = "a/b") -> tuple[Sample, ...]:
    return tuple(Sample(key, STREAM.source, STREAM.epoch, sn, b"%d" % sn) for sn in sns)


def reply(
    served: tuple[Sample, ...] = (),
    *,
    absent: tuple[tuple[int, tuple[int, ...]], ...] = (),
    old: tuple[tuple[int, tuple[int, ...]], ...] = (),
) -> PullReply:
    return PullReply(encode_batch(SampleBatch(served)) if served else b"", absent, old)


def taken(pulls: Pulls, peer: str, answer: PullReply) -> list[int]:
    page = pulls.next_page()
    assert page is not None
    assert page[0] == peer
    return [sample.sn for sample in pulls.take(peer, page[1], answer)]


def unrecoverable(ledger: Ledger) -> tuple[int, ...]:
    return ledger.records[place_of(ledger)].unrecoverable


def test_what_an_answer_does_not_mention_is_asked_for_again(ledger: Ledger, pulls: Pulls) -> None:
    place = place_of(ledger)
    pulls.want(place, RangeSet([(10, 14)]))
    assert taken(pulls, "peer", reply(samples(12, 13))) == [12, 13]
    assert pulls.next_page() == ("peer", ((place, (10, 11, 14, 14)),))
    assert taken(pulls, "peer", reply(absent=((place, (10, 11)),))) == []
    assert taken(pulls, "peer", reply(old=((place, (14, 14)),))) == []
    assert not pulls.left
    assert pulls.offered == 2


def test_an_answer_with_nothing_ends_the_asking_and_concludes_nothing(
    ledger: Ledger, pulls: Pulls
) -> None:
    pulls.want(place_of(ledger), RangeSet([(10, 14)]))
    assert taken(pulls, "peer", reply()) == []
    assert not pulls.left
    pulls.conclude()
    assert unrecoverable(ledger) == ()


def test_nothing_beyond_the_question_is_believed(ledger: Ledger, pulls: Pulls) -> None:
    place = place_of(ledger)
    pulls.want(place, RangeSet([(10, 14)]))
    given = samples(9, 11, 15) + samples(12, key="a/c") + samples(13, key="z")
    more = ((place, (0, 99)),)
    assert taken(pulls, "peer", reply(given, old=more)) == [11]
    assert unrecoverable(ledger) == (10, 14)  # what is older than wanted is that for this cache


def test_what_is_too_old_is_unrecoverable_at_once(ledger: Ledger, pulls: Pulls) -> None:
    place = place_of(ledger)
    pulls.want(place, RangeSet([(10, 14)]))
    taken(pulls, "peer", reply(samples(14), old=((place, (10, 11)),)))
    assert unrecoverable(ledger) == (10, 11)
    assert pulls.unrecoverable == 2


def test_only_when_everybody_says_no_is_a_number_unrecoverable(
    ledger: Ledger, pulls: Pulls
) -> None:
    place = place_of(ledger)
    pulls.seek(place, RangeSet([(10, 14)]), {"two", "three"})
    asked = pulls.next_page()
    assert asked is not None
    first, second = asked[0], ({"two", "three"} - {asked[0]}).pop()
    taken(pulls, first, reply(samples(12), absent=((place, (10, 11, 13, 14)),)))
    pulls.conclude()
    assert unrecoverable(ledger) == ()
    taken(pulls, second, reply(absent=((place, (10, 14)),)))
    pulls.conclude()
    assert unrecoverable(ledger) == (10, 11, 13, 14)


@pytest.mark.parametrize("silent", ["fails", "leaves open"])
def test_no_answer_is_no_absence(ledger: Ledger, pulls: Pulls, silent: str) -> None:
    place = place_of(ledger)
    pulls.seek(place, RangeSet([(10, 14)]), {"two"})
    if silent == "fails":
        pulls.drop_peer("two")
    else:
        taken(pulls, "two", reply(absent=((place, (10, 12)),)))
        taken(pulls, "two", reply())
    pulls.conclude()
    assert not pulls.left
    assert unrecoverable(ledger) == ()


def test_without_anybody_to_ask_it_is_unrecoverable_at_once(ledger: Ledger, pulls: Pulls) -> None:
    pulls.seek(place_of(ledger), RangeSet([(10, 14)]), set())
    assert unrecoverable(ledger) == (10, 14)


def test_a_page_asks_for_the_newest_of_a_fresh_stream_first(ledger: Ledger, pulls: Pulls) -> None:
    place = place_of(ledger)
    pulls.want(place, RangeSet([(10, 14)]), fresh=True)
    assert pulls.next_latest() == ((place, (14, 14)),)
    assert pulls.next_latest() == ()
    assert pulls.next_page() == ("peer", ((place, (10, 14)),))


def test_a_page_stops_where_enough_is_asked_for(ledger: Ledger, pulls: Pulls) -> None:
    for place in (1, 2, 3):
        pulls.want(place, RangeSet([(10, 21)]))
    page = pulls.next_page()
    assert page is not None
    assert [place for place, _ in page[1]] == [1, 2]


def test_what_is_here_by_now_is_compared_and_not_offered(ledger: Ledger, pulls: Pulls) -> None:
    new, known = pulls.split(SampleBatch(samples(8, 9, 10)))
    assert ([s.sn for s in new], [s.sn for s in known]) == ([10], [8, 9])


@pytest.mark.parametrize("epoch", [EPOCH_UNKNOWN, STREAM.epoch])
def test_beside_what_is_missing_of_a_run_that_no_token_named_what_is_here_is_asked_for(
    epoch: int,
) -> None:
    """Numbers in common show whether both mean one run; they count as nothing else."""
    stream = STREAM._replace(epoch=epoch)
    ledger = Ledger(OPTIONS, CacheProfile("one", "1", ("a/**",)))
    ledger.load([StreamLoaded(stream, RangeSet([(0, 9), (20, 25)]))])
    pulls = Pulls(ledger, "peer", OPTIONS)
    place = ledger.place(stream)
    pulls.want(place, RangeSet([(10, 14)]))
    assert pulls.next_page() == ("peer", ((place, (9, 14, 20, 20)),))
    given = tuple(msgspec.structs.replace(sample, epoch=epoch) for sample in samples(9, 12, 20))
    assert taken(pulls, "peer", reply(given)) == [9, 12, 20]
    assert pulls.offered == 1
    assert taken(pulls, "peer", reply(given[:1], old=((place, (20, 20)),))) == []
    missing = (place, (10, 11, 13, 14))
    assert pulls.next_page() == ("peer", (missing,)), "what is here filled the page"
    assert taken(pulls, "peer", reply()) == []
    assert not pulls.left
    assert ledger.records[place].unrecoverable == ()


def test_what_is_here_is_not_asked_for_where_the_peer_says_that_a_token_named_the_run(
    ledger: Ledger,
) -> None:
    place, pulls = place_of(ledger), Pulls(ledger, "peer", OPTIONS)
    pulls.want(place, RangeSet([(10, 14)]))
    assert pulls.next_page() == ("peer", ((place, (9, 14)),))
    named = reply(samples(9, 14))
    named = msgspec.structs.replace(named, incarnations=(Incarnation(*STREAM[1:], "0a0a0a0a"),))
    assert taken(pulls, "peer", named) == [9, 14]
    assert pulls.next_page() == ("peer", ((place, (10, 13)),))
    again = Pulls(ledger, "peer", OPTIONS)
    again.want(place, RangeSet([(10, 14)]))
    assert again.next_page() == ("peer", ((place, (10, 14)),))


def test_what_this_cache_does_not_take_is_refused_once_and_not_asked_for_again() -> None:
    ledger = Ledger(
        OPTIONS,
        CacheProfile("one", "1", ("a/**",)),
        lambda sample: "too large" if len(sample.payload) > 2 else "",
    )
    ledger.load([StreamLoaded(STREAM, RangeSet([(0, 9)]))])
    place = place_of(ledger)
    pulls = Pulls(ledger, "peer", OPTIONS)
    pulls.name(place, STREAM)
    pulls.want(place, RangeSet([(99, 101)]))
    assert taken(pulls, "peer", reply(samples(99, 100, 101))) == [99]
    assert not pulls.left
    assert (pulls.refused, pulls.refusal, pulls.offered) == (2, "too large", 1)
    assert unrecoverable(ledger) == (100, 101)
    theirs = Entry(place, 0, 0, (0, 101), (), 0)
    for lane in (Lane.KNOWLEDGE, Lane.CONTENT):
        assert ledger.lacking(theirs, lane).want == RangeSet([(10, 99)])
    again = Pulls(ledger, "peer", OPTIONS)
    again.name(place, STREAM)
    again.want(place, RangeSet([(100, 100)]))
    assert taken(again, "peer", reply(samples(100))) == []
    assert again.refused == 0, "it was counted"


def test_what_is_not_taken_is_refused_where_few_names_are_kept() -> None:
    options = replace(OPTIONS, wants_max=1)
    ledger = Ledger(options, CacheProfile("one", "1", ("a/**",)), lambda _: "too large")
    ledger.load([StreamLoaded(STREAM, RangeSet([(0, 9)]))])
    pulls = Pulls(ledger, "peer", options)
    keys = ("a/b", "a/c", "a/d")
    for key in keys:
        pulls.want(ledger.place(STREAM._replace(key=key)), RangeSet([(10, 10)]))
    given = tuple(sample for key in keys for sample in samples(10, key=key))
    assert taken(pulls, "peer", reply(given)) == []
    assert pulls.refused == 3
    assert not pulls.left


def test_a_page_of_what_is_not_taken_alone_ends_the_asking() -> None:
    ledger = Ledger(OPTIONS, CacheProfile("one", "1", ("a/**",)), lambda _: "too large")
    pulls = Pulls(ledger, "peer", OPTIONS)
    place = place_of(ledger)
    pulls.name(place, STREAM)
    pulls.want(place, RangeSet([(0, 3)]))
    assert taken(pulls, "peer", reply(samples(2, 3))) == []
    assert pulls.next_page() == ("peer", ((place, (0, 1)),))


NAMED = RunName(STREAM.epoch, "0a0a0a0a").timestamp_id


def named_samples(*sns: int) -> tuple[Sample, ...]:
    return tuple(msgspec.structs.replace(one, timestamp_id=NAMED) for one in samples(*sns))


@pytest.mark.parametrize("how", ["was stored", "waits for its slot", "came a while ago"])
def test_what_is_here_is_not_asked_for_where_it_names_its_run(ledger: Ledger, how: str) -> None:
    place, pulls = place_of(ledger), Pulls(ledger, "peer", OPTIONS)
    if how == "was stored":
        ledger.count(SampleBatch((*samples(8), *named_samples(9))))
    else:
        ledger.append(SampleBatch(named_samples(8, 9)))
    if how == "came a while ago":
        ledger.advance(1_800_000_000 * 10**9)
    pulls.want(place, RangeSet([(10, 14)]))
    assert pulls.next_page() == ("peer", ((place, (10, 14)),))


def test_what_came_names_its_run_for_the_next_page(ledger: Ledger) -> None:
    place, pulls = place_of(ledger), Pulls(ledger, "peer", OPTIONS)
    pulls.want(place, RangeSet([(10, 14)]))
    assert pulls.next_page() == ("peer", ((place, (9, 14)),))
    assert taken(pulls, "peer", reply(named_samples(14))) == [14]
    assert pulls.next_page() == ("peer", ((place, (10, 13)),))


def test_a_stream_that_was_forgotten_has_no_name(ledger: Ledger) -> None:
    place, pulls = place_of(ledger), Pulls(ledger, "peer", OPTIONS)
    ledger.append(SampleBatch(named_samples(9)))
    ledger.advance(1_800_000_000 * 10**9)
    del ledger.records[place]
    ledger.load([StreamLoaded(STREAM, RangeSet([(0, 9)]))])
    pulls.want(place, RangeSet([(10, 14)]))
    assert pulls.next_page() == ("peer", ((place, (9, 14)),))
