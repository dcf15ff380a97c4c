"""Which epochs a cache takes for one, what the engine makes of it, and what is moved by it."""

from __future__ import annotations

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Stream
from durable_cache.model.selection import Selection
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, frame
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.protocol.cache.agreement import Agreement
from durable_cache.protocol.cache.events import (
    Alias,
    BatchReceived,
    EpochDeclared,
    EpochFreed,
    EpochsAgreed,
    Fetch,
    Origin,
    SendAck,
    Tick,
)
from durable_cache.protocol.cache.questions import (
    Answer,
    Conversation,
    Keep,
    Pause,
    ResultT,
    Unanswered,
)
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.answering import answer
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from tests.unit.test_engine import SOURCE, Shell, at, only, sample

EARLY, LATE = 7, 9


def samples(*sns: int, epoch: int = 0, payload: bytes = b"") -> list[Sample]:
    return [sample(sn, epoch=epoch, payload=payload, ntp64=(sn + 1) << 32) for sn in sns]


class Cache:
    """An engine with a storage, and what looks at samples of others before they come in."""

    def __init__(self) -> None:
        self.shell = Shell()
        self.store = JournaledStorage(MemoryStorage(), None)
        self.agreed: list[Alias] = []
        self.disk_full = False
        self.now = 0.0
        self.revoked: list[Alias] = []
        self.asked: list[tuple[int, int, int]] = []
        self.agreeing = Agreement(self.shell.engine.known)

    def talk(self, conversation: Conversation[ResultT]) -> ResultT | None:
        """Answer a conversation's questions until it ends; None where one is not answered."""
        reply: Answer | None = None
        try:
            while True:
                question = next(conversation) if reply is None else conversation.send(reply)
                assert not isinstance(question, Pause)
                if self.disk_full and isinstance(question, Keep):
                    conversation.throw(Unanswered())
                reply = answer(self.store, question)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except Unanswered:
            return None
        finally:
            self.agreed += self.agreeing.agreed
            self.revoked += self.agreeing.revoked
            self.asked += [(i.inquiry_id, i.first, i.last) for i in self.agreeing.inquiries.take()]
            self.agreeing.agreed, self.agreeing.revoked = [], []

    def answered(self, *given: Sample) -> None:
        """Answer the last inquiry."""
        self.given(*given)
        self.talk(self.agreeing.answered(self.asked[-1][0]))

    def live(self, *heard: Sample) -> None:
        self.shell.live(*heard)
        self.store.commit(SampleBatch(heard))

    def given(self, *given: Sample) -> int:
        """Take what another cache gives; returns how many may come in."""
        now = Moment(round(self.now * 1e9), at(self.now).unix_ns)
        batch = self.talk(self.agreeing.settle(SampleBatch(given), now))
        assert batch is not None
        self.shell.give(BatchReceived(batch, Origin.ALIGNED, at(1)))
        self.store.commit(batch)
        return len(batch)


def of_run(cache: Cache, epoch: int) -> RangeSet:
    """Return which numbers are stored under an epoch."""
    pages = cache.store.pages(Selection(), 100)
    return RangeSet.of(one.sn for page in pages for one in page if one.epoch == epoch)


def named(cache: Cache, epoch: int, *sns: int) -> None:
    """Let a cache hold samples of an epoch that somebody named once."""
    assert cache.given(*samples(*sns, epoch=epoch)) == len(sns)


def test_the_same_sample_under_two_epochs_shows_that_they_are_one_and_the_later_stands() -> None:
    for held, given in ((EARLY, LATE), (LATE, EARLY)):
        cache = Cache()
        named(cache, held, 3, 4, 5)
        assert cache.given(*samples(5, 6, epoch=given)) == 2
        assert cache.agreed == []
        assert [(first, last) for _, first, last in cache.asked] == [(3, 5)]
        cache.answered(*samples(3, 4, 5, epoch=given))
        assert cache.agreed == [Alias(SOURCE, EARLY, 0, LATE)]


def test_another_time_or_content_shows_that_two_epochs_are_two() -> None:
    cache = Cache()
    named(cache, EARLY, 3, 4, 5)
    cache.given(*samples(4, epoch=LATE, payload=b"other"))
    cache.given(*samples(5, epoch=LATE))
    later = msgspec.structs.replace(samples(5, epoch=LATE + 1)[0], ntp64=1 << 50)
    cache.given(later)
    assert (cache.agreed, cache.asked) == ([], [])


def test_one_number_with_another_content_in_the_answer_shows_that_two_epochs_are_two() -> None:
    """A restart that was missed: what is under the old name came after what is rightly so."""
    cache = Cache()
    named(cache, EARLY, *range(20), *range(50, 60))
    cache.given(*samples(55, epoch=LATE))
    cache.answered(*samples(*range(50, 60), epoch=LATE), *samples(3, epoch=LATE, payload=b"new"))
    cache.given(*samples(56, 57, epoch=LATE))
    assert (cache.agreed, len(cache.asked)) == ([], 1)


def test_what_is_here_under_both_names_must_not_differ_either() -> None:
    cache = Cache()
    named(cache, EARLY, 1, 2, 3, 50)
    cache.given(*samples(2, epoch=LATE, payload=b"new"))
    again = Cache()
    again.store, again.shell = cache.store, cache.shell
    again.agreeing = Agreement(cache.shell.engine.known)
    again.given(*samples(50, epoch=LATE))
    again.answered(*samples(50, epoch=LATE))
    assert again.agreed == []


def test_an_agreement_that_others_show_to_be_wrong_is_taken_back() -> None:
    cache = Cache()
    named(cache, LATE, 3, 4, 5)
    cache.given(*samples(5, epoch=EARLY))
    cache.answered()
    (agreement,) = cache.agreed
    cache.shell.give(EpochsAgreed(SOURCE, EARLY, LATE))
    cache.given(*samples(4, epoch=EARLY))
    assert cache.revoked == []
    cache.given(*samples(3, epoch=EARLY, payload=b"other"))
    assert cache.revoked == [agreement]
    cache.given(*samples(5, epoch=EARLY))
    assert (cache.revoked, len(cache.asked)) == ([agreement], 1)


def test_a_time_that_a_cache_gave_says_nothing() -> None:
    cache = Cache()
    named(cache, EARLY, 3)
    own = msgspec.structs.replace(samples(3, epoch=LATE)[0], stamped=True)
    assert cache.given(own) == 1
    assert cache.agreed == []


def test_samples_without_an_epoch_from_either_side_of_a_wrap_are_of_two_runs() -> None:
    ended = [
        msgspec.structs.replace(one, sn=SOURCE_SN_MODULUS - 3 + at)
        for at, one in enumerate(samples(1, 2, 3))
    ]
    begun = samples(*range(10, 13))
    begun = [msgspec.structs.replace(one, sn=at) for at, one in enumerate(begun)]
    cache = Cache()
    cache.live(*begun)
    for cache.now in (0.0, 100.0, 1000.0):
        assert cache.given(*ended) == 0
    cache = Cache()
    cache.live(*ended)
    assert cache.given(*begun[:2]) == 2
    assert cache.given(*begun[2:]) == 1
    known = cache.shell.engine.known(SOURCE)
    assert {epoch: [*one.window.held] for epoch, one in known.numberings.items()} == {
        EPOCH_UNKNOWN: [(ended[0].sn, ended[-1].sn)],
        frame(ntp64_to_ns(begun[0].ntp64)): [(0, 2)],
    }


def test_where_others_have_another_run_without_an_epoch_they_are_asked_how_they_call_ours() -> None:
    """Nobody gives it by its name: retention removed it here under that (seed 50032)."""
    ended = [timed(sn, SOURCE_SN_MODULUS - 3 + sn) for sn in range(3)]
    cache = Cache()
    cache.live(*(timed(10 + sn, sn) for sn in range(3)))
    cache.shell.engine.known(SOURCE).numberings[EPOCH_UNKNOWN].foreign = True  # it was restarted
    assert cache.given(*ended) == 0
    assert [(first, last) for _, first, last in cache.asked] == [(0, 2)]
    cache.answered(*(timed(10 + sn, sn, LATE) for sn in range(3)))
    assert cache.agreed == [Alias(SOURCE, EPOCH_UNKNOWN, 0, LATE)]


def test_they_are_not_where_what_they_give_without_an_epoch_has_one_here() -> None:
    """It is they who do not know its name."""
    cache = Cache()
    cache.live(*(timed(sn, SOURCE_SN_MODULUS - 3 + sn) for sn in range(3)))
    begun = [timed(10 + sn, sn) for sn in range(3)]
    assert cache.given(*(msgspec.structs.replace(one, epoch=LATE) for one in begun)) == 3
    before = len(cache.asked)
    cache.now = 100
    assert cache.given(*begun) == 3
    assert len(cache.asked) == before
    assert of_run(cache, LATE) == RangeSet([(0, 2)])
    assert of_run(cache, EPOCH_UNKNOWN).last == SOURCE_SN_MODULUS - 1


def test_they_are_not_where_what_they_give_is_here_under_two_epochs() -> None:
    cache = Cache()
    cache.live(*(timed(sn, SOURCE_SN_MODULUS - 3 + sn) for sn in range(3)))
    begun = [timed(10 + sn, sn) for sn in range(4)]
    for epoch, given in ((EARLY, begun[:2]), (LATE, begun[2:])):
        named = (msgspec.structs.replace(one, epoch=epoch) for one in given)
        assert cache.given(*named) == 2
    before = len(cache.asked)
    cache.now = 100
    assert cache.given(*begun) == 0
    assert len(cache.asked) == before


def test_two_runs_without_an_epoch_stay_two_after_a_restart_of_the_cache() -> None:
    """What is here was stored by a process before: it is no less of one run for that."""
    other = [msgspec.structs.replace(one, payload=b"other") for one in samples(0, 1)]
    later = [msgspec.structs.replace(one, ntp64=one.ntp64 + (100 << 32)) for one in other]
    for given, taken in ((other, 0), (later, 2)):
        cache = Cache()
        cache.live(*samples(0, 1, 2, 3))
        cache.shell.engine.known(SOURCE).numberings[EPOCH_UNKNOWN].foreign = True
        assert cache.given(*given) == taken
        assert len(cache.shell.engine.known(SOURCE).numberings) == 1 + (taken > 0)


def test_numbers_apart_say_nothing() -> None:
    cache = Cache()
    named(cache, EARLY, 8)
    named(cache, LATE, 3)
    assert (cache.agreed, cache.asked) == ([], [])


def test_an_epoch_that_its_publisher_declared_never_loses() -> None:
    cache = Cache()
    cache.shell.give(EpochDeclared(SOURCE, LATE, False, at(0)))
    cache.live(*samples(0, 1, 2, epoch=LATE))
    assert cache.given(*samples(2, epoch=EARLY)) == 1
    cache.answered()
    assert cache.agreed == [Alias(SOURCE, EARLY, 0, LATE)]
    cache = Cache()
    cache.shell.give(EpochDeclared(SOURCE, LATE, False, at(0)))
    cache.live(*samples(0, 1, 2, epoch=LATE))
    assert cache.given(*samples(2, epoch=LATE + 1)) == 1
    cache.answered()
    assert cache.agreed == [Alias(SOURCE, LATE + 1, 0, LATE)]


def test_an_epoch_stands_that_was_declared_to_another_cache_alone() -> None:
    cache = Cache()
    named(cache, EARLY, 3, 4, 5)
    cache.agreeing.hear_names([Incarnation(SOURCE, LATE, "0000000a")])
    assert cache.given(*samples(5, epoch=LATE)) == 1
    cache.answered()
    assert cache.agreed == [Alias(SOURCE, EARLY, 0, LATE)]


def test_what_this_process_alone_heard_without_an_epoch_takes_that_of_others() -> None:
    cache = Cache()
    cache.live(*samples(10, 11, 12))
    assert cache.given(*samples(12, epoch=LATE)) == 1
    assert cache.given(*samples(90)) == 0, "may be of an older run"
    cache.answered(*samples(10, 11, epoch=LATE))
    assert cache.agreed == [Alias(SOURCE, 0, 0, LATE)]
    cache.now += 60
    assert cache.given(*samples(90)) == 0, "until all is moved"
    cache.agreeing.release(SOURCE)
    assert cache.given(*samples(90)) == 1


def test_what_could_not_be_kept_durably_is_agreed_on_with_the_next_sample() -> None:
    cache = Cache()
    cache.live(*samples(10, 11, 12))
    cache.disk_full = True
    assert cache.given(*samples(12, epoch=LATE)) == 1
    cache.answered()
    cache.disk_full = False
    cache.now += 60
    assert cache.given(*samples(11, epoch=LATE)) == 1
    cache.answered()
    assert cache.agreed == [Alias(SOURCE, 0, 0, LATE)]


def test_without_a_number_in_common_the_others_are_asked_for_one_before_older_runs_mix() -> None:
    cache = Cache()
    cache.live(*samples(10, 11, 12))
    assert cache.given(*samples(3, epoch=LATE)) == 1
    assert cache.given(*samples(4, epoch=LATE)) == 1
    assert [(first, last) for _, first, last in cache.asked] == [(10, 12)]
    assert cache.given(*samples(80)) == 0
    cache.answered(*samples(10, epoch=LATE))
    assert cache.agreed == [Alias(SOURCE, 0, 0, LATE)]


def test_others_are_not_asked_about_what_came_from_others() -> None:
    cache = Cache()
    cache.live(*samples(10, 11))
    assert cache.given(*samples(12)) == 1
    assert cache.given(*samples(3, epoch=LATE)) == 1
    assert cache.asked == []


def test_what_has_no_epoch_comes_in_once_the_others_were_asked() -> None:
    for answered in ((), samples(10, epoch=LATE, payload=b"other")):
        cache = Cache()
        cache.live(*samples(10, 11))
        assert cache.given(*samples(3, epoch=LATE)) == 1
        assert cache.given(*samples(12)) == 0
        cache.answered(*answered)
        assert cache.given(*samples(12)) == 1


def test_what_has_no_epoch_is_of_the_run_that_began_since_if_its_time_is_later() -> None:
    cache = Cache()
    cache.live(*samples(0, 1, 2))
    began = [sample(sn, epoch=EARLY, ntp64=(100 + sn) << 32) for sn in (5, 9)]
    assert cache.given(*began) == 2
    cache.answered()
    assert cache.given(sample(3, ntp64=4 << 32), sample(4, ntp64=5 << 32)) == 2
    assert cache.given(sample(7, ntp64=107 << 32)) == 1
    assert cache.shell.held(EARLY) == RangeSet.of([5, 7, 9])
    assert cache.shell.held(0) == RangeSet([(0, 4)])


def timed(seconds: float, sn: int, epoch: int = 0) -> Sample:
    return sample(sn, epoch=epoch, ntp64=round(seconds * (1 << 32)))


def test_what_has_no_epoch_is_of_the_run_before_until_the_next_one_began() -> None:
    """A name says when a run began to 8.6 s; what is stored of it says it better."""
    cache = Cache()
    began = frame(63 * 10**9)
    cache.live(*(timed(57 + sn, sn) for sn in range(3)))
    assert cache.given(*(timed(63 + sn, sn, began) for sn in range(6))) == 6
    assert frame(61 * 10**9) == began
    assert cache.given(timed(61, 3), timed(62, 4)) == 2
    assert cache.shell.held(0) == RangeSet([(0, 4)])
    assert cache.shell.held(began) == RangeSet([(0, 5)])


def test_a_higher_number_with_an_earlier_time_is_of_a_run_that_was_never_heard_here() -> None:
    """It was down meanwhile, and no number in common shows that they are two (154213)."""
    for earlier, comes_in in ((0.05, 1), (0.5, 0)):
        cache = Cache()
        cache.live(timed(60, 0))
        assert cache.given(timed(60 - earlier, 32)) == comes_in


def test_what_has_no_epoch_is_of_a_run_that_began_within_the_same_time_frame() -> None:
    cache = Cache()
    began = frame(64 * 10**9)
    cache.live(timed(61, 0), timed(62, 1))
    assert cache.given(*(timed(64 + sn / 2, sn, began) for sn in (0, 1, 2, 5, 6, 7))) == 6
    assert cache.given(timed(68, 8)) == 1
    assert cache.shell.held(0) == RangeSet([(0, 1)])
    assert cache.shell.held(began) == RangeSet([(0, 2), (5, 8)])


def test_what_another_has_without_an_epoch_waits_where_it_calls_by_one_what_is_here_without() -> (
    None
):
    """It has two runs and parts them: ours is the second, and its number 0 is of the first."""
    cache = Cache()
    cache.live(*samples(2, 6))
    before, begun = sample(0, ntp64=1), samples(0, 2, 3, 6, epoch=LATE)
    assert cache.given(before, *begun) == len(begun)
    cache.answered(*begun)
    assert cache.agreed == [Alias(SOURCE, EPOCH_UNKNOWN, 0, LATE)]
    cache.shell.give(EpochsAgreed(SOURCE, EPOCH_UNKNOWN, LATE))
    cache.shell.give(EpochFreed(SOURCE, EPOCH_UNKNOWN))
    cache.agreeing.release(SOURCE)
    assert cache.given(before) == 1


def test_what_no_answer_shows_is_asked_for_less_and_less_often() -> None:
    cache = Cache()
    cache.live(*samples(10, 11))
    for cache.now in range(1000):
        cache.given(*samples(3, epoch=LATE))
    assert 3 < len(cache.asked) < 10


def test_what_is_of_two_runs_without_an_epoch_keeps_to_itself() -> None:
    cache = Cache()
    cache.live(*samples(10, 11))
    assert cache.given(*samples(7, payload=b"older")) == 1  # it came before anyone named the run
    assert cache.given(*samples(11, epoch=LATE)) == 1
    cache.answered(*samples(7, epoch=LATE))
    assert cache.agreed == []


def out_of_order() -> Cache:
    """Return a cache that has 10 and 11 and was given 12, whose timestamp is earlier."""
    cache = Cache()
    cache.live(*samples(10, 11))
    cache.now = 1.0
    assert cache.given(sample(12, ntp64=5 << 32)) == 0
    assert [(first, last) for _, first, last in cache.asked] == [(10, 11)]
    return cache


def test_a_number_in_common_shows_that_times_which_go_back_are_of_the_same_run() -> None:
    cache = out_of_order()
    cache.answered(*samples(11))
    assert cache.given(sample(12, ntp64=5 << 32), sample(13, ntp64=4 << 32)) == 2


def test_a_number_in_common_with_another_content_shows_that_they_are_of_another_run() -> None:
    cache = out_of_order()
    cache.answered(*samples(10), *samples(11, payload=b"older"))
    cache.now += 200
    assert cache.given(sample(12, ntp64=5 << 32)) == 0
    cache.now += 200
    assert cache.given(sample(12, ntp64=5 << 32)) == 1


def test_an_answer_about_what_has_a_name_by_now_holds_nothing_back() -> None:
    """Others' samples without an epoch waited for a name that only ours needed (seed 77694)."""
    cache = out_of_order()
    assert cache.given(*samples(11, payload=b"older")) == 0
    for event in (EpochsAgreed(SOURCE, EPOCH_UNKNOWN, LATE), EpochFreed(SOURCE, EPOCH_UNKNOWN)):
        cache.shell.give(event)
    cache.agreeing.release(SOURCE)
    cache.answered()
    assert cache.given(*samples(9, 10, payload=b"older")) == 2


def test_without_an_answer_the_others_are_asked_again_and_after_half_a_minute_all_comes_in() -> (
    None
):
    cache = out_of_order()
    cache.answered()
    assert cache.given(sample(12, ntp64=5 << 32)) == 0
    cache.now += 11
    assert cache.given(sample(12, ntp64=5 << 32)) == 0
    assert len(cache.asked) == 2
    cache.now += 20
    assert cache.given(sample(12, ntp64=5 << 32)) == 1


def test_what_another_gives_without_an_epoch_and_is_here_with_one_waits_and_the_rest_comes_in() -> (
    None
):
    cache = Cache()
    named(cache, LATE, 3, 4, 5)
    older = samples(2, 3, 4, payload=b"older")
    assert cache.given(*older) == 3
    assert cache.given(*samples(5), sample(6, ntp64=11 << 31)) == 0, "which may be of two runs"
    assert cache.given(*samples(7)) == 0
    cache.now += 400
    assert cache.given(*samples(5), sample(6, ntp64=11 << 31), *samples(7)) == 2
    assert cache.agreed == []


def test_what_comes_with_a_number_of_the_run_without_an_epoch_does_not_wait() -> None:
    """Others of that source do, and of which run they are may show in minutes (seed 36812)."""
    cache = Cache()
    named(cache, LATE, 3, 4, 5)
    older = samples(2, 3, 4, 8, payload=b"older")
    assert cache.given(*older[:3]) == 3
    assert cache.given(*samples(5), sample(6, ntp64=11 << 31)) == 0
    assert cache.given(older[3]) == 0
    assert cache.given(*older[2:]) == 2
    assert cache.given(*samples(7)) == 0


def test_a_restart_that_comes_in_one_batch_is_of_one_epoch() -> None:
    shell = Shell()
    shell.live(*(sample(sn) for sn in range(50)))
    later = 5 << 32
    shell.live(*(sample(sn, ntp64=later + sn, payload=b"new") for sn in range(40, 60)), seconds=30)
    assert shell.held(0) == RangeSet([(0, 49)])
    assert shell.held(frame(at(30).unix_ns)) == RangeSet([(40, 59)])


def test_the_engine_goes_on_under_the_epoch_agreed_on() -> None:
    shell = Shell()
    shell.live(*samples(0, 1, 5))
    shell.give(EpochsAgreed(SOURCE, 0, LATE))
    shell.give(EpochsAgreed(SOURCE, LATE, EARLY))
    known = shell.engine.known(SOURCE)
    assert (known.current, [*known.numberings]) == (EARLY, [EARLY])
    assert known.canonical(0, 3) == EARLY
    fetches = only(shell.give(Tick(at(1))), Fetch)
    assert [(fetch.epoch, fetch.first, fetch.last) for fetch in fetches] == [(EARLY, 2, 4)]  # type: ignore[union-attr]
    shell.recovered(*samples(3, epoch=LATE))
    shell.live(*samples(6))
    assert shell.held(EARLY) == RangeSet.of([3, 6])
    refiled = BatchReceived(SampleBatch(samples(0, 1, 5, epoch=EARLY)), Origin.REFILED, at(2))
    assert only(shell.give(refiled), SendAck)
    assert shell.held(EARLY) == RangeSet.of([0, 1, 3, 5, 6])


def test_an_epoch_that_was_freed_is_another_numbering() -> None:
    shell = Shell()
    shell.live(*samples(0, 1, 2))
    shell.give(EpochsAgreed(SOURCE, 0, LATE))
    shell.give(EpochFreed(SOURCE, 0))
    shell.recovered(*samples(1, epoch=0, payload=b"older"))
    assert shell.disk[0, 1].payload == b"1"  # the disk of this test kept it
    assert shell.engine.known(SOURCE).numberings[0].window.held == RangeSet([(1, 1)])


def test_a_live_sample_that_continues_a_later_epoch_of_others_belongs_to_it() -> None:
    shell = Shell()
    shell.live(*samples(0, 1, 2))
    shell.recovered(*samples(*range(100, 110), epoch=LATE))
    shell.live(*samples(112))
    assert shell.engine.known(SOURCE).current == LATE
    assert shell.held(LATE) == RangeSet([(100, 109), (112, 112)])


def test_a_live_sample_that_goes_on_both_runs_belongs_to_the_later_one() -> None:
    """By number it is the next of the run before, too (seed 5580 of the simulator)."""
    shell = Shell()
    shell.live(*samples(*range(6)))
    later = [msgspec.structs.replace(s, ntp64=s.ntp64 + (60 << 32)) for s in samples(*range(7))]
    shell.recovered(*(msgspec.structs.replace(s, epoch=LATE) for s in later[:5]))
    shell.live(later[6])
    assert shell.engine.known(SOURCE).current == LATE
    assert shell.held(LATE) == RangeSet([(0, 4), (6, 6)])
    assert shell.held() == RangeSet([(0, 5)])


def test_a_live_sample_that_does_not_continue_a_later_epoch_stays_where_it_was() -> None:
    shell = Shell()
    shell.live(*samples(0, 1, 2))
    shell.recovered(*samples(*range(100, 110), epoch=LATE))
    early = msgspec.structs.replace(samples(111)[0], ntp64=4 << 32)
    shell.live(early)
    assert shell.engine.known(SOURCE).current == 0


def test_a_numbering_is_moved_when_the_backend_has_all_of_it_and_then_forgotten() -> None:
    store = JournaledStorage(MemoryStorage(), None)
    agreement = Alias(SOURCE, LATE, 0, EARLY)
    store.commit(SampleBatch(samples(1, 2, epoch=LATE)))
    store.commit(SampleBatch(samples(2, epoch=EARLY)))
    assert not store.moved(agreement)
    store.commit(SampleBatch(samples(1, epoch=EARLY)))
    assert store.moved(agreement)
    assert store.forget(SOURCE, LATE) == [Stream("k", SOURCE, LATE)]
    assert {held.stream.epoch for held in store.backend.held()} == {EARLY}
    ((state,), _) = store.load(SOURCE)
    assert (state.epoch, store.index.streams) == (EARLY, 1)
    assert store.forget(SOURCE, LATE) == []


def test_an_agreement_is_remembered_but_of_an_unknown_epoch_only_until_it_is_freed() -> None:
    store = JournaledStorage(MemoryStorage(), None)
    named_twice, unknown = Alias(SOURCE, LATE, 0, EARLY), Alias(SOURCE, 0, 0, EARLY)
    for agreement in (named_twice, unknown, unknown):
        store.index.agree(agreement)
    assert set(store.load(SOURCE)[1]) == {named_twice, unknown}
    store.forget(SOURCE, 0)
    store.forget(SOURCE, LATE)
    assert store.index.agreements() == [named_twice]
