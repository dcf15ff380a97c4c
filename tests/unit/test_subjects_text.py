"""Does a subject's sequence do what RaiMS's text on message loss says, sentence by sentence?"""

from __future__ import annotations

import pytest

from durable_cache.errors import ConfigError
from durable_cache.model.clock import Moment
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.sequence import SN_MAX, frame, frame_start_ns, pack_sequence
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    EngineOptions,
    EpochsKnown,
    EpochsUnknown,
    Put,
    Send,
    SendFailed,
    Sent,
    Spooled,
    Started,
)
from durable_cache.protocol.publisher.subjects import PublisherWindow
from durable_cache.protocol.subjects import attach, detach, is_start
from durable_cache.protocol.subscriber.events import DeliveryOptions, Missed, Received, TimePassed
from durable_cache.protocol.subscriber.subjects import (
    Condition,
    SubjectId,
    Subjects,
    SubscriberWindow,
)
from tests.unit.subscriber_reader import FRESH, SECOND, SOURCE, Reader

TEXT_NS = 1659131646 * 1_000_000_000
SUBJECT = SubjectId(SOURCE, "k")
BOUNDED = EngineOptions(pub_window_bytes=2_000, pub_window_ns=10 * SECOND)


def at(seconds: float) -> Moment:
    return Moment(round(seconds * SECOND), TEXT_NS + round(seconds * SECOND))


def taken(window: SubscriberWindow, *counts: int, epoch: int = 5) -> list[tuple[Condition, int]]:
    """Take samples of one frame in order of their numbers."""
    found = []
    for sn, count in enumerate(counts):
        sequence = pack_sequence(frame(TEXT_NS), count - 1)
        found.append(tuple(window.take(SUBJECT, sequence, pack_sequence(epoch, sn), at(0))))
    return found  # type: ignore[return-value]


def put(window: PublisherWindow, key: str, sn: int, seconds: float) -> int:
    sequence, _ = window.following(key, sn, at(seconds))
    window.sent()
    return sequence


# Message loss


def test_normally_the_sequence_is_one_greater_than_the_last() -> None:
    window = SubscriberWindow(DeliveryOptions())
    assert taken(window, 1, 2, 3)[1:] == [(Condition.NEXT, 0)] * 2


def test_a_publisher_that_begins_synchronizes_the_sequence_numbers() -> None:
    window = SubscriberWindow(DeliveryOptions())
    taken(window, 1, 2, 3)
    later = pack_sequence(frame(TEXT_NS) + 2, 0)
    assert window.take(SUBJECT, later, pack_sequence(5, 9), at(20)).condition is Condition.START
    following = window.take(SUBJECT, later + 1, pack_sequence(5, 10), at(20))
    assert following.condition is Condition.NEXT


def test_the_first_message_of_a_subject_is_a_start_whose_time_is_its_frame() -> None:
    """The text: it always includes a timestamp when the first message is published …"""
    engine = PublisherEngine(SOURCE, "00000001", BOUNDED)
    engine.handle(Started(at(0)))
    engine.handle(EpochsUnknown(at(0)))
    for seconds in (0.0, 0.5):
        (*_, send) = engine.handle(_put("a/b", seconds))
        assert isinstance(send, Send)
        found = detach(send.sample)
        assert found is not None
        assert is_start(found.sequence) == (seconds == 0)
        assert found.sequence >> 35 == frame(TEXT_NS)
        assert send.sample.ntp64 > 0
        engine.handle(Sent())


def test_a_subject_that_is_old_enough_is_cycled_and_begins_anew() -> None:
    """The text: … or when the last sequence is old enough to be cycled from the window."""
    window = PublisherWindow(2_000, 10 * SECOND)
    first = [put(window, f"a/{number}", number, 0) for number in range(40)]
    put(window, "b/1", 40, 11)
    assert put(window, "a/0", 41, 11) == first[0] + 1  # old, and still there: one half turned over
    for number in range(40):
        put(window, f"c/{number}", 42 + number, 12)
    put(window, "b/2", 90, 23)
    again = put(window, "a/1", 91, 23)
    assert is_start(again)
    assert again > first[1]
    assert window.rotated == 39
    assert put(window, "a/0", 92, 23) == first[0] + 2


def test_the_first_that_is_received_is_usually_no_start() -> None:
    window = SubscriberWindow(DeliveryOptions())
    assert taken(window, 7, 8) == [(Condition.FIRST, 0), (Condition.NEXT, 0)]
    assert taken(SubscriberWindow(DeliveryOptions()), 1) == [(Condition.START, 0)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_sequence_not_above_the_last_was_processed_and_is_dropped(count: int) -> None:
    subjects = Subjects(DeliveryOptions())
    samples = [borne(sn, sn + 1) for sn in range(3)]
    assert len(subjects.read(samples)) == 3
    assert subjects.read([borne(count - 1, count)]) == []
    assert subjects.counts.repeats == 1


def test_a_mode_that_passes_on_repeats_counts_them_only() -> None:
    subjects = Subjects(DeliveryOptions())
    repeated = subjects.read([borne(0, 1), borne(1, 2), borne(0, 1)], keeps_repeats=True)
    assert [(one.sn, one.attachment) for one in repeated] == [(0, None), (1, None), (0, None)]
    assert subjects.counts.repeats == 1


def test_whoever_carries_samples_on_gets_them_with_their_sequences() -> None:
    subjects = Subjects(DeliveryOptions(keeps_trailers=True))
    samples = [borne(0, 1), borne(1, 4)]
    assert subjects.read(samples) == samples
    assert subjects.counts.lost == 2


def test_a_number_that_is_new_is_never_dropped_for_its_sequence() -> None:
    """A publisher that began anew unseen, as after a restart: the source's numbers tell."""
    window = SubscriberWindow(DeliveryOptions())
    taken(window, 1, 2, 3)
    sequence = pack_sequence(frame(TEXT_NS), 1)
    later_run = window.take(SUBJECT, sequence, pack_sequence(6, 1), at(0))
    assert later_run.condition is Condition.FIRST


def test_a_sequence_that_skips_ahead_is_told_to_the_subscriptions() -> None:
    subjects = Subjects(DeliveryOptions(subject_losses_max=1))
    passed_on = subjects.read([borne(0, 1), borne(1, 5), borne(2, 6), borne(3, 8)])
    assert [one.sn for one in passed_on] == [0, 1, 2, 3]
    assert [(loss.key, loss.lost, loss.total) for loss in subjects.take_losses()] == [
        ("k", 3, 3),
        ("k", 1, 4),
    ]
    assert subjects.take_losses() == []
    assert (subjects.counts.skips, subjects.counts.lost) == (2, 4)


def test_of_a_frame_whose_start_is_missing_what_came_since_is_lost() -> None:
    window = SubscriberWindow(DeliveryOptions())
    taken(window, 1, 2)
    later = pack_sequence(frame(TEXT_NS) + 2, 3)
    assert window.take(SUBJECT, later, pack_sequence(5, 9), at(20)) == (Condition.SKIPPED, 3)


def test_what_comes_for_a_subscription_that_dropped_is_counted() -> None:
    subjects = Subjects(DeliveryOptions())
    subjects.unsubscribed([borne(0, 1), borne(1, 2), Sample("k", SOURCE, 0, 2, b"x")])
    assert subjects.counts.unsubscribed == 2


# Multicast sequence numbers


def test_the_example_of_the_text() -> None:
    window = PublisherWindow(1000, 10 * SECOND)
    sequence, _ = window.following("a/b", 0, Moment(0, TEXT_NS))
    assert sequence == 0x5C19ADC000000001 == (TEXT_NS >> 33 << 35) + 1


def test_sequences_are_never_zero_and_a_new_frame_follows_the_last_of_35_bits() -> None:
    """The text: These are rotated to a new time frames when the sequence number is zero."""
    window = PublisherWindow(1000, 10 * SECOND)
    last = pack_sequence(frame(TEXT_NS), SN_MAX)
    window._sequences.put("a/b", last, 0)
    assert (last + 1) & ((1 << 35) - 1) == 0
    assert put(window, "a/b", 3, 0) == pack_sequence(frame(TEXT_NS) + 1, 0)


def test_a_new_frame_can_only_occur_after_its_interval() -> None:
    """The text: a new time frame can only occur after 10 seconds, approximately."""
    assert (frame_start_ns(1) - frame_start_ns(0)) / SECOND == pytest.approx(8.59, abs=0.01)
    starts = {put(PublisherWindow(1000, 10 * SECOND), "k", 0, s / 10) >> 35 for s in range(86)}
    assert len(starts) <= 2


def test_frames_are_valid_until_2115_and_go_on_at_the_last_one() -> None:
    window = PublisherWindow(1000, 10 * SECOND)
    year_2115 = (2115 - 1970) * 31_556_952 * SECOND
    window.following("a", 0, Moment(0, year_2115))
    sequence, _ = window.following("a", 0, Moment(0, 10 * year_2115))
    assert sequence == pack_sequence((1 << 29) - 1, 0)


@pytest.mark.parametrize(("age_seconds", "perhaps"), [(-8, True), (9, True), (11, False)])
def test_a_late_join_verifies_that_the_frame_is_older_than_the_convergence(
    age_seconds: int, perhaps: bool
) -> None:
    """Its frame has begun at its end at the latest."""
    window = SubscriberWindow(DeliveryOptions())
    sequence = pack_sequence(frame(TEXT_NS), 8)
    now = Moment(0, frame_start_ns(frame(TEXT_NS) + 1) + age_seconds * SECOND)
    window.take(SUBJECT, sequence, pack_sequence(5, 8), now)
    state = window.state(SUBJECT)
    assert state is not None
    assert (state.perhaps_incomplete, state.count) == (perhaps, 9)
    assert window.perhaps_incomplete == perhaps


def test_a_start_ends_the_doubt() -> None:
    window = SubscriberWindow(DeliveryOptions())
    window.take(SUBJECT, pack_sequence(frame(TEXT_NS), 8), pack_sequence(5, 8), at(0))
    assert window.perhaps_incomplete == 1
    later = pack_sequence(frame(TEXT_NS) + 2, 0)
    window.take(SUBJECT, later, pack_sequence(5, 9), at(20))
    assert window.perhaps_incomplete == 0


# The windows


@pytest.mark.parametrize("seconds", [0, 5, 9.9, "9 sec"])
def test_the_time_of_the_publishers_window_is_at_least_ten_seconds(seconds: float | str) -> None:
    from durable_cache import PublisherOptions

    with pytest.raises(ConfigError, match=r"pub_window_time: .* at least 10 s .* 8.6 s"):
        PublisherOptions(pub_window_time=seconds).checked()


def test_windows_default_to_4_megabyte_and_10_seconds() -> None:
    from durable_cache import PublisherOptions

    assert PublisherOptions().pub_window == (4_000_000, 10 * SECOND)
    assert DeliveryOptions().sub_window == (4_000_000, 10 * SECOND)
    configured = {"sub_window_size": "10 mb", "sub_window_time": "60 sec"}
    assert DeliveryOptions(**configured).sub_window == (10_000_000, 60 * SECOND)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sub_window_size: expected a size"):
        DeliveryOptions(sub_window_size="much").check()


def test_a_window_rotates_when_it_is_full_and_old_enough_only() -> None:
    """The text: when the memory limit is reached and the interval is greater."""
    full, old = PublisherWindow(2_000, 10 * SECOND), PublisherWindow(10**6, 10 * SECOND)
    for number in range(100):
        put(full, f"a/{number}", number, 9)
        put(old, f"a/{number}", number, number * 100)
    assert (full.rotated, len(full)) == (0, 100)
    assert (old.rotated, len(old)) == (0, 100)


def test_a_subject_that_left_the_subscribers_window_is_as_newly_subscribed() -> None:
    window = SubscriberWindow(DeliveryOptions(sub_window_size=2_000))
    begun = pack_sequence(frame(TEXT_NS), 0)
    for number in range(60):
        subject = SubjectId(SOURCE, f"a/{number}")
        window.take(subject, begun, pack_sequence(5, number), at(number))
    assert window.rotated > 0
    back = window.take(SubjectId(SOURCE, "a/0"), begun + 5, pack_sequence(5, 99), at(60))
    assert back == (Condition.FIRST, 0)


# In the engines: entity numbers stay as they are


def _put(key: str, seconds: float) -> Put:
    now = at(seconds)
    return Put(key, Kind.PUT, b"x", "zenoh/bytes", None, now.unix_ns, "4f2a", 13, now)


def test_rotation_changes_no_number_no_epoch_and_no_token() -> None:
    engine = PublisherEngine(SOURCE, "00000001", BOUNDED)
    engine.handle(Started(at(0)))
    (declared,) = engine.handle(EpochsUnknown(at(0)))
    epoch, numbers = engine.epoch, []
    for number in range(200):
        *other, send = engine.handle(_put(f"a/{number % 100}", number / 2))
        assert all(type(output) is type(declared) for output in other)
        assert isinstance(send, Send)
        numbers.append(send.sample.sn)
        engine.handle(Sent())
    assert numbers == list(range(200))
    assert (engine.epoch, engine.incarnation) == (epoch, "00000001")
    assert engine.subjects is not None
    assert engine.subjects.rotated > 0


def test_a_put_that_raises_uses_no_sequence_up() -> None:
    engine = PublisherEngine(SOURCE, "00000001", BOUNDED)
    engine.handle(Started(at(0)))
    engine.handle(EpochsUnknown(at(0)))
    sequences = []
    for outcome in (Sent(), SendFailed(), Sent()):
        (*_, send) = engine.handle(_put("a/b", 0))
        assert isinstance(send, Send)
        found = detach(send.sample)
        assert found is not None
        sequences.append(found.sequence)
        engine.handle(outcome)
    assert sequences == [sequences[0], sequences[0] + 1, sequences[0] + 1]


def test_a_process_that_goes_on_begins_frames_above_those_of_the_one_before() -> None:
    before = pack_sequence(frame(TEXT_NS) + 3, 4)
    left = Sample(
        *("a/b", SOURCE, 9, 6, b"x"),
        attachment=attach(None, before, "a/b", 6),
        received_ns=TEXT_NS,
    )
    options = EngineOptions(acknowledgements=1, pub_window_bytes=2_000)
    spooled = (Spooled(SOURCE, 9, "0000aaaa", (left,)),)
    engine = PublisherEngine(SOURCE, "00000001", options, spooled=spooled)
    engine.handle(Started(at(0)))
    engine.handle(EpochsUnknown(at(0)))
    send = next(one for one in engine.handle(_put("a/b", 0)) if isinstance(one, Send))
    found = detach(send.sample)
    assert found is not None
    assert (found.sequence, found.since) == (pack_sequence(frame(TEXT_NS) + 4, 0), 7)


def test_a_run_that_caches_know_is_behind_the_frames_that_begin() -> None:
    engine = PublisherEngine(SOURCE, "00000001", BOUNDED)
    engine.handle(Started(at(0)))
    engine.handle(EpochsKnown(frame(TEXT_NS) + 5, at(0)))
    send = next(one for one in engine.handle(_put("a/b", 0)) if isinstance(one, Send))
    found = detach(send.sample)
    assert found is not None
    assert found.sequence == pack_sequence(engine.epoch, 0) == pack_sequence(frame(TEXT_NS) + 6, 0)


def borne(sn: int, count: int, since: int = 0, source: SourceId = SOURCE) -> Sample:
    sequence = pack_sequence(FRESH, count - 1)
    return Sample(
        *("k", source, 0, sn, b"%d" % sn),
        attachment=attach(None, sequence, "k", sn, since),
        ntp64=sn + 1,
    )


def one_key(options: DeliveryOptions | None = None) -> Reader:
    reader = Reader(options)
    reader.engine.subjects.of_one_key = True
    return reader


def test_numbers_between_neighbours_of_the_only_key_are_other_keys() -> None:
    reader = one_key()
    reader.declared(FRESH, "00000001")
    reader.live(borne(4, 1), borne(9, 2))
    reader.live(borne(400_000, 3))
    assert reader.story == [4, 9, 400_000]
    assert reader.fetches == []


def test_neighbours_that_overtake_each_other_are_known_when_all_are_there() -> None:
    reader = one_key()
    reader.live(borne(4, 1))
    reader.live(borne(20, 3), borne(30, 4), borne(9, 2))
    assert reader.story == [4, 9, 20, 30]


def test_a_key_that_comes_back_to_the_window_leaves_open_what_nobody_knows() -> None:
    """What was put before the window knows all may have been of the key."""
    reader = one_key(DeliveryOptions(gap_timeout_seconds=5.0))
    reader.live(borne(4, 1))
    later = pack_sequence(FRESH + 3, 0)
    back = Sample(
        *("k", SOURCE, 0, 50, b"x"), attachment=attach(None, later, "k", 50, 40), ntp64=60
    )
    reader.live(back)
    assert [(fetch.first, fetch.last) for fetch in reader.fetches] == [(5, 39)]
    reader.answer()
    reader.seconds = 6
    reader.handle(TimePassed(reader.now))
    assert reader.story == [4, (5, 39), 50]


def test_what_is_missing_of_the_only_key_is_asked_for_and_told() -> None:
    reader = one_key(DeliveryOptions(gap_timeout_seconds=5.0))
    reader.live(borne(4, 1))
    reader.live(borne(9, 3))
    assert len(reader.fetches) == 1
    reader.answer()
    reader.seconds = 6
    outputs = reader.engine.handle(TimePassed(reader.now))
    assert any(isinstance(output, Missed) for output in outputs)
    (loss,) = reader.engine.subjects.take_losses()
    assert (loss.key, loss.lost) == ("k", 1)


def test_another_run_has_neighbours_of_its_own() -> None:
    """A pinned source that restarts within a frame: nothing of its second run is passed over."""
    reader = one_key(DeliveryOptions(gap_timeout_seconds=5.0))
    reader.declared(FRESH, "00000001")
    reader.live(borne(0, 1), borne(1, 2))
    reader.declared(FRESH + 1, "00000002")
    reader.live(borne(7, 3, source=SOURCE))
    assert reader.story == [0, 1]
    assert reader.fetches


def test_who_takes_several_keys_asks_as_ever() -> None:
    reader = Reader()
    reader.handle(Received([borne(4, 1), borne(9, 2)], reader.now))
    assert [(fetch.first, fetch.last) for fetch in reader.fetches] == [(5, 8)]
