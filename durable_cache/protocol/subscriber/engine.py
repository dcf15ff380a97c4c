"""What a reliable subscriber passes on, asks for, gives up and reports.

Theory of operation (RFC, "The ReliableSubscriber"; ADR 0080). Exactly once and in source order
follow from one rule: only the next number of a numbering is ever delivered, and a later numbering
of a source begins when the earlier one is at its end. A number ahead is held back and the hole is
asked for, with growing pauses, until it is filled, caches explain it, or its time is over; then
the loss is reported and what was held back goes on. A number far ahead is held until a second
sample or an answer confirms it. Before the first sample of a later numbering the rest of the
earlier one is asked for. While history is read, samples of sources that are not followed yet wait.

How a shell drives it: after `start` one thread calls `handle` with each event and carries out the
outputs in order: it delivers (and may wait for a slow consumer), reports, and hands each question
to a thread that asks, which answers with one event of its number. `wake_ns` asks for `TimePassed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import assert_never

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.subscriber.answerers import Answerers
from durable_cache.protocol.subscriber.asking import asked_from, asked_to
from durable_cache.protocol.subscriber.awaiting_tokens import AwaitingTokens, age_of
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    BeginningTold,
    Declared,
    Deliver,
    DeliveryOptions,
    Event,
    Fetch,
    Fetched,
    FetchFailed,
    HeartbeatReceived,
    HistoryFailed,
    HistoryPage,
    Output,
    Received,
    TimePassed,
    TokenGone,
)
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.heartbeats import Heartbeats
from durable_cache.protocol.subscriber.held import Held
from durable_cache.protocol.subscriber.history import History
from durable_cache.protocol.subscriber.naming import of_others, of_run
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.places import Crowd, Sources
from durable_cache.protocol.subscriber.putting_right import (
    let_go_unnamed,
    note_named,
    put_left_over_right,
    put_right,
)
from durable_cache.protocol.subscriber.reading import Reading
from durable_cache.protocol.subscriber.subjects import Subjects
from durable_cache.protocol.subscriber.tails import Tails
from durable_cache.protocol.subscriber.too_large import TooLarge, in_place, whole_answer
from durable_cache.protocol.subscriber.unnumbered import Unnumbered
from durable_cache.protocol.subscriber.which_run import WhichRun


class SubscriberEngine:
    """The pure heart of a reliable subscriber; owned by one thread."""

    _earlier: SubscriberEngine | None = None  # whose losses and question numbers it goes on with

    def __init__(
        self, options: DeliveryOptions | None = None, *, history: bool = False, newest: int = 0
    ) -> None:
        """Want `history`: all there is, or so many of the `newest` of each key; 0 for all."""
        self._options = options or DeliveryOptions()
        self._fetches: dict[int, tuple[Numbering, Fetch, bool]] = {}
        """With whether all answers to the question so far were whole."""
        earlier, bound = self._earlier, self._options.losses_max
        self.subjects: Subjects = Subjects(self._options, earlier.subjects if earlier else None)
        self._sources, self._outputs = Sources(self._options), Outputs(self.subjects)
        self._ids: Iterator[int] = earlier._ids if earlier else count(1)
        self.losses: Losses = earlier.losses if earlier else Losses(bound)  # misses: by the shell
        self._held, self._awaiting = Held(self.losses), AwaitingTokens(self._options)
        self._unnumbered = Unnumbered(self._outputs, self._held, self.losses, self._options)
        self._unnumbered.has_history = history
        rest = self._outputs, self._held, self._sources, self._unnumbered
        self._history = History(self._options, self._ids, *rest, wanted=history, newest=newest)
        self.run_names = self._history.names  # by which epochs named runs go here
        self._tails = Tails(self._options, self._sources, self._history, self._ask)
        reads = self._outputs, self._sources, self._history, self._tails, self._ask
        self._answerers = Answerers(self._options, self._ids, *reads)
        told = self._awaiting, self._tails, self._outputs, self.losses
        declare, ended = partial(self._declared, waited=True), self._answerers.ends.of
        self._which_run = WhichRun(self._options, *told, declare, ended)
        parts = self._sources, self._history, self._answerers, self._awaiting
        self._heartbeats = Heartbeats(self._options, *parts, self._ask, self._settle)
        self._crowd, self._answerers_known = Crowd(self._options), False
        self._began_ns = self._heard_ns = 0  # Unix time; samples came last then
        self._duplicates = self.beyond = self._dropped = 0  # what is dropped is asked for
        self._wake_known = False  # a next number does not change it
        self._wake_ns: int | None = None

    @property
    def history_complete(self) -> bool:
        """Whether somebody answered the question for history whole; True where none is asked."""
        return self._history.complete

    @property
    def reads_history(self) -> bool:
        """Whether live samples wait for history."""
        return self._history.active

    @property
    def delivered(self) -> int:
        return self._outputs.delivered

    @property
    def missed(self) -> int:
        """How many numbers were reported."""
        return self._outputs.missed

    @property
    def duplicates(self) -> int:
        """How many repeats were dropped; what an answer to our own question repeats is none."""
        return (
            self._duplicates
            + self._which_run.duplicates
            + self._unnumbered.repeats
            + self._held.repeats
        )

    @property
    def dropped(self) -> int:
        """How many samples found no room; they are asked for."""
        return self._dropped + self._which_run.dropped

    @property
    def gaps_open(self) -> int:
        """How many sources wait for something missing."""
        return len(self._sources.waiting)

    def start(self, now: Moment, *, answerers_known: bool = False) -> list[Output]:
        """Begin; returns the first question for history, if there is one to ask.

        `answerers_known`: there are caches, and one that does not answer may be restarting.
        """
        self._history.began_ns = self._began_ns = self._heard_ns = now.unix_ns
        self._answerers_known = self._history.in_reach = answerers_known
        self._wake_known = False
        if self._history.active:
            self._history.start(now.monotonic_ns)
        return self._outputs.take()

    def handle(self, event: Event) -> list[Output]:
        """Take what happened and return what is to be done, in order."""
        self.losses.now_ns, self.subjects.now = event.now.unix_ns, event.now
        self._wake_known = self._wake_known and isinstance(event, Received)
        match event:
            case Received():
                self._received(event)
            case Fetched() | FetchFailed():
                self._answered(event)
            case HistoryPage() | HistoryFailed():
                self._read_history(event)
            case Declared():
                self._declared(event)
            case TokenGone():
                self._token_gone(event)
            case HeartbeatReceived():
                self._heartbeats.heard(event)
            case AnswererAppeared():
                self._answerers_known = True
                self._answerers.appeared(event)
            case BeginningTold():
                self._answerers.told(event, self._began_ns)
            case AnswerersGone():
                self._answerers.gone(self._heard_ns, self._began_ns)
            case TimePassed(now):
                self._tick(now)
            case _:
                assert_never(event)
        if self._crowd.waiting:
            self._let_in(event.now)
        return self._outputs.take()

    def take_next(self, received: Received) -> Sequence[Sample] | None:
        """Return what is passed on where it is the next of one source; else None (ADR 0226)."""
        samples, now, outputs = received.samples, received.now, self._outputs
        if received.oversized or not samples or self._crowd.waiting or outputs.unsure:
            return None
        numbering = self._sources.steady.get(samples[0].source)
        if numbering is not None and (ready := numbering.take_next(samples)) is not None:
            self._heard_ns, self.losses.now_ns = now.unix_ns, now.unix_ns
            self.subjects.now, outputs.delivered = now, outputs.delivered + len(ready)
            return ready
        return None

    def wake_ns(self) -> int | None:
        """Return the monotonic time of the next thing to do, or None."""
        if not self._wake_known:
            times = self._history.wake_times() + self._sources.wake_times()
            times += self._awaiting.wake_times() + self._tails.wake_times()
            self._wake_ns = min(times + self._answerers.wake_times(), default=None)
            self._wake_known = True
        return self._wake_ns

    # What is published

    def _received(self, received: Received) -> None:
        samples, now, oversized = received.samples, received.now, received.oversized
        if (ready := self.take_next(received)) is not None:
            self._outputs.done.append(Deliver(tuple(ready)))
        elif not oversized:
            self._take_each(samples, now)
        for sample in in_place(samples, oversized) if oversized else ():
            self._take(sample, now)

    def _take_each(self, samples: Sequence[Sample], now: Moment) -> None:
        ready, reading = self._outputs.ready, self._history.active
        steady, self._heard_ns = self._sources.steady, now.unix_ns
        for sample in samples:
            numbering = steady.get(sample.source)
            if numbering is not None and numbering.is_next(sample):
                ready.append(numbering.next_named(sample))
                continue
            self._wake_known = False
            if is_unnumbered(sample.source):
                self._unnumbered.live(sample, reading=reading)
            elif not reading or self._sources.is_live(sample.source):
                self._live(sample, now)
            elif len(self._held) < self._options.pending_samples_max:
                self._held.add(sample)  # until history is read
            else:
                self._crowd_in(sample)

    def _take(self, sample: Sample, now: Moment) -> None:
        """Take a sample that may be too large for us."""
        if isinstance(sample, TooLarge):
            self._sources.steady.pop(sample.source, None)  # another look than at its number
        self._take_each((sample,), now)

    def _crowd_in(self, sample: Sample) -> None:
        """Keep of a sample there is no room for how far its source has come."""
        self._dropped += 1
        self._crowd.add(sample)
        for source, first, last in self._crowd.take_beyond(reading=self.reads_history):
            self._outputs.report(source, EPOCH_UNKNOWN, first, last)

    def _live(self, sample: Sample, now: Moment, *, late: bool = False) -> None:
        """Take a sample that is not just the next one; `late`: it waited for a token in vain."""
        if (followed := self._sources.follow(sample.source)) is None:
            self._crowd_in(sample)
            return
        followed.used = followed.live = True
        if (numbering := self._which_run.of(followed, sample, now, late=late)) is None:
            return
        self.subjects.pass_over(numbering, sample, ready=self._outputs.ready)
        if numbering.is_beyond(sample, self._options):
            self._park(numbering, sample)
        else:
            self._hold(numbering, sample)
        self._settle(followed, now)

    def _park(self, numbering: Numbering, sample: Sample) -> None:
        """Set aside a number far ahead until a second sample or an answer confirms it."""
        parked = numbering.parked
        if parked is not None and 0 < sample.sn - parked.sn <= self._options.window_size_samples:
            numbering.parked = None
            self._hold(numbering, parked)
            self._hold(numbering, sample)
            return
        self.beyond += 1
        numbering.parked = sample
        if self._options.recovery:
            self._ask(numbering, sample.sn, sample.sn)

    def _hold(self, numbering: Numbering, sample: Sample, *, asked: bool = False) -> None:
        repeats, dropped = numbering.duplicates, numbering.dropped
        numbering.hold(sample, self._options.pending_samples_max)
        if not asked and numbering.duplicates > repeats:
            self._duplicates += 1
            self.losses.repeated(sample.source)
        self._dropped += numbering.dropped - dropped

    # What the state of a source leads to

    def _settle(self, followed: Followed, now: Moment) -> None:
        """Deliver what has its turn, go from numbering to numbering, ask for what is missing."""
        options, now_ns = self._options, now.monotonic_ns
        self.losses.seen(followed.source)
        while (head := followed.head) is not None:
            head.advance(self._outputs, now_ns)
            if head.opened_ns is not None and not options.recovery:
                head.end_known = True
                head.give_up(self._outputs, head.top, now_ns)
            if not any(later.reached >= 0 for later in followed.numberings[1:]):
                break  # none, or it is declared and nothing of it came yet
            if not head.ending:
                followed.look_for_end(head, options, self._outputs, now_ns)
            if len(followed.numberings) > options.runs_max:
                followed.give_up_first(self._outputs, now_ns)
            if not (head.end_known and head.is_passed_on):
                break
            self._answerers.ended(followed.end_first(), now)
        if head is not None:
            self._ask_missing(followed, head, now_ns)
        between = self._awaiting.is_open(followed) or self._held.has_tokens(followed.source)
        self._sources.note(followed, between_runs=between)

    def _ask_missing(self, followed: Followed, numbering: Numbering, now_ns: int) -> None:
        if not (self._options.recovery and numbering.is_due(now_ns)):
            return
        if numbering.ending and not numbering.end_known:
            numbering.fetch = self._ask(numbering, asked_from(numbering), None)
            numbering.asked_to = numbering.top
        else:
            span = max(numbering.span, self._options.request_samples_max)
            numbering.asked_to = asked_to(numbering, span, followed.ended)
            numbering.fetch = self._ask(numbering, asked_from(numbering), numbering.asked_to)

    def _ask(self, numbering: Numbering, first: int, last: int | None) -> Fetch:
        fetch = Fetch(next(self._ids), numbering.source, numbering.epoch, first, last)
        return self._put(numbering, fetch, whole=True)

    def _put(self, numbering: Numbering, fetch: Fetch, *, whole: bool) -> Fetch:
        self._fetches[fetch.fetch_id] = numbering, fetch, whole
        self._outputs.ask(fetch)
        return fetch

    def _answered(self, event: Fetched | FetchFailed) -> None:
        if isinstance(event, Fetched):
            event = replace(event, answer=whole_answer(event.answer))
        if self._history.owns(event.fetch_id):
            self._history.explained(event)
            self._after_history(event.now)
            return
        if (asked := self._fetches.pop(event.fetch_id, None)) is None:
            return
        numbering, fetch, whole = asked
        if isinstance(event, FetchFailed) or not event.answer.whole:
            self.losses.unanswered(fetch.source)
        followed = self._sources.get(numbering.source)
        if followed is None or numbering not in followed.numberings or self._tails.waits(numbering):
            if not self._answerers.ends.answered(fetch, numbering, event):
                self._tails.answered(numbering, event, whole=False)
            return
        cut, before, now_ns = None, numbering.next_sn, event.now.monotonic_ns
        if isinstance(event, Fetched):
            cut, whole = event.answer.cut_after, whole and event.answer.whole
            self._take_answer(followed, numbering, fetch, event, whole=whole and cut is None)
        following: Fetch | None = None
        if cut is not None and cut != fetch.after and numbering.dropped_from is None:
            following = replace(fetch, fetch_id=next(self._ids), after=cut)
            self._put(numbering, following, whole=whole)
        if numbering.fetch is fetch:
            numbering.fetch = following
            followed.advance(numbering, self._outputs, now_ns)
            followed.live |= numbering.next_sn != before
            if following is None:
                more = cut is not None and numbering.next_sn != before
                numbering.pause(self._options, now_ns, at_once=more)
                self._tails.answered(numbering, event, whole=whole and cut is None)
        self._settle(followed, event.now)

    def _take_answer(
        self, followed: Followed, numbering: Numbering, fetch: Fetch, event: Fetched, *, whole: bool
    ) -> None:
        """Compare an answer with its question, source, epoch and range, and keep what fits.

        `whole`: so it was, and those before it where it is one of several.
        """
        answer, now_ns = event.answer, event.now.monotonic_ns
        samples_max = self._options.pending_samples_max
        self._answerers_known |= answer.answerers > 0
        reach = max(numbering.top, fetch.first) + self._options.window_size_samples
        last = min(reach if fetch.last is None else fetch.last, SOURCE_SN_MODULUS - 1)
        alone = sum(n.declared_epoch == numbering.declared_epoch for n in followed.numberings) == 1
        others = of_others(numbering, answer.parts, followed.times_of_others(numbering))
        owns, taken = partial(numbering.owns, alone=alone, of_others=others), 0
        parts = [of_run(numbering, followed.numberings, part) for part in answer.parts]
        for part, ours in zip(answer.parts, parts, strict=True):
            names = part.names()
            self._history.forget(followed.learn_names(part, self.run_names))
            put_right(followed, part, answer.parts, samples_max, self._outputs)
            note_named(followed, part.samples, names)
            for sample in ours.samples:
                if fetch.first <= sample.sn <= last and owns(sample, names):
                    let_go_unnamed(followed, numbering, sample, names, self._options, self._outputs)
                    self._hold(numbering, sample, asked=True)
                    taken += 1
                    if len(numbering.pending) >= samples_max:
                        followed.advance(numbering, self._outputs, now_ns)
        for part in parts:
            numbering.learn_absent(part, fetch.first, last, owns=owns, whole=whole, beside=parts)
        if fetch.last is None and numbering.ending and whole:
            numbering.end_told |= self._answerers.tell_ends(answer.answerers)
            numbering.end_known |= answer.answerers > 0 or not self._answerers_known
        # Wide holes of other keys' numbers are asked for in wider spans, samples in narrow ones.
        few = answer.cut_after is None and taken < self._options.request_samples_max // 10
        numbering.span = min(numbering.span * 2 or 1, 1 << 20) if few else 0

    # Tokens and heartbeats

    def _declared(self, event: Declared, *, waited: bool = False) -> None:
        source, now = event.source, event.now
        fresh, stale = age_of(event, self._began_ns)
        if not waited and self._waits(source, now):
            self._held.declare(event, self._sources.known(source), fresh=fresh, stale=stale)
            return
        followed = self._sources.follow(source)
        if followed is None:
            if (before := self._crowd.declare(event)) is not None:
                self._begin_at_rest(before)
            return
        stale &= not self._awaiting.is_open(followed)  # it is listed beside no other any more
        stale &= event.listed or not event.by_sample
        if not event.by_sample:
            self._tails.shown(source, now.monotonic_ns)
        late, begun, unknown = self._awaiting.shown(event, followed)
        for sample in late:
            self._live(sample, now)
        options = self._options
        begins = followed.declare(event, self.run_names, options, fresh=fresh, maybe_stale=stale)
        if not event.by_sample:
            followed.saw_token(event, now.unix_ns)
        if begins:
            self._tails.began(source, now.monotonic_ns)
            self._sources.steady.pop(source, None)
            if not self._history.active:
                self._history.ask_again(now.monotonic_ns)
            begun = self._awaiting.with_early(followed.take_early(options, now.monotonic_ns), begun)
            if unknown and self._options.recovery:  # an answer brings what is of this run
                self._dropped += len(sns := [sample.sn for sample in unknown])
                self._ask(followed.numberings[-1], min(sns), max(sns))
        for sample in begun:
            self._live(sample, now)
        if followed.live:  # until then history comes first
            self._settle(followed, now)

    def _waits(self, source: SourceId, now: Moment) -> bool:
        """Tell whether a token waits for history; else what came before it goes before it."""
        if not self._sources.is_live(source):
            held, crowd = self._held, self._crowd
            return self.reads_history and held.follows_crowd(source, crowd, self._sources)
        for sample in self._crowd.leave(source):
            self._live(sample, now)
        return False

    def _begin_at_rest(self, token: Declared) -> None:
        """Let a run begin of a source there is no room for: the next is here, or history of it."""
        fresh, stale = age_of(token, self._began_ns)
        followed = self._sources.known(token.source) or self._sources.look(token.source)
        followed.declare(token, self.run_names, self._options, fresh=fresh, maybe_stale=stale)
        self._sources.keep(followed)

    def _token_gone(self, event: TokenGone, *, waited: bool = False) -> None:
        self._sources.hides(event.source, event.incarnation)
        if not waited and self._waits(event.source, event.now):
            self._held.gone(event)
            return
        self._awaiting.gone(event, () if waited else self._crowd.came_of(event.source))
        self._tails.gone(event.source, event.now.monotonic_ns)
        self._sources.steady.pop(event.source, None)  # what comes next may be of another run

    # History

    def _read_history(self, event: HistoryPage | HistoryFailed) -> None:
        if isinstance(event, HistoryPage):
            self._answerers_known |= event.answer.answerers > 0
            given = chain.from_iterable(part.samples for part in event.answer.parts)
            for token in self._crowd.tokens_of(given):
                self._begin_at_rest(token)
            self._history.take_page(replace(event, answer=whole_answer(event.answer)))
        else:
            self._history.failed(event)
        self._after_history(event.now)

    def _after_history(self, now: Moment) -> None:
        """Follow the sources that history brought, and pass on what waited for it."""
        history = self._history
        self._tails.told(self._held.take_lagging(), now.monotonic_ns)
        live: dict[SourceId, list[Sample]] = {}
        for sample in history.take_live():
            live.setdefault(sample.source, []).append(sample)
        for source, samples in live.items():
            self._go_on_with(source, samples, now)
        if history.active:
            return
        over, others = history.take_readings()
        for key, reading in over:
            self._answerers.read(key, history.names.of(key), reading, now)
        for (source, epoch), reading in others:
            self._go_on_behind(source, epoch, reading, now)
        for one in self._held.take(self._sources, self._which_run.too_late, history.reading):
            if isinstance(one, Declared):
                self._declared(one, waited=True)
            elif isinstance(one, TokenGone):
                self._token_gone(one, waited=True)
            else:
                self._take(one, now)
        for followed in self._crowd.passed_by(self._sources, self._outputs):
            self._settle(followed, now)
        self._tails.told(self._crowd.take_doubted(), now.monotonic_ns)

    def _go_on_with(self, source: SourceId, samples: Sequence[Sample], now: Moment) -> None:
        """Take what history brought of a source that was followed as its page was taken.

        It may rest since: the same page brought another one, which took its room. Where all that
        are followed wait, what has its turn is passed on, and the rest waits for room.
        """
        sources = self._sources
        followed = sources.known(source) or sources.look(source)
        for sample in samples:
            name = self._history.names.of((source, sample.epoch))
            for numbering in followed.numberings:
                if numbering.is_called(sample.epoch, name):
                    self._hold(numbering, sample, asked=True)
        if source in sources.followed:
            self._settle(followed, now)
            return
        if (head := followed.head) is None:  # nothing is known of it any more: it counts as new
            for sample in samples:
                self._crowd_in(sample)
            return
        head.advance(self._outputs, now.monotonic_ns)
        for numbering in followed.numberings:
            for sn in sorted(numbering.pending):
                self._crowd_in(numbering.pending[sn])
        sources.rest(followed)

    def _go_on_behind(self, source: SourceId, epoch: int, reading: Reading, now: Moment) -> None:
        """Follow a run that history read, from where it stands; the one before has ended."""
        followed = self._sources.follow(source) or self._sources.look(source)
        if reading.late and followed.is_past(epoch):
            return
        names, before = self._history.names, followed.ended
        name = names.of((source, epoch))
        over: list[str] = []
        if self._held.has_begun(source, name):  # its token waits: what shows none was before it
            runs = (r for r in followed.numberings if r.is_at_its_first and not r.pending)
            over = [r.incarnation for r in runs if r.incarnation not in ("", name, followed.shown)]
        numbering = followed.resume(epoch, name, names.called, over)
        numbering.go_on_behind(reading, epoch, followed.ended)
        if followed.ended is not None and followed.ended is not before:
            self._answerers.ended(followed.ended, now)
        if source in self._sources.followed:
            self._settle(followed, now)
        else:
            self._sources.rest(followed)

    # Time and bounds

    def _tick(self, now: Moment) -> None:
        self._history.tick(now.monotonic_ns)
        self._after_history(now)
        for one in self._awaiting.over(self._sources, now.monotonic_ns):
            if isinstance(one, Sample):
                self._live(one, now, late=True)
            else:
                self._settle(one, now)
        for followed in list(self._sources.waiting.values()):
            self._expire(followed, now)
        self._tails.tick(now.monotonic_ns, reading=self.reads_history)
        self._answerers.tick(now.monotonic_ns)

    def _expire(self, followed: Followed, now: Moment) -> None:
        """Ask again for what is missing, or give it up where its time is over."""
        timeout_ns = round(self._options.gap_timeout_seconds * 1e9)
        head = followed.head
        if head is not None and head.opened_ns is not None:
            # A slow answer is not a loss: it is waited for at most twice the time.
            late = 1 if head.fetch is None else 2
            if now.monotonic_ns >= head.opened_ns + late * timeout_ns:
                put_left_over_right(followed, self._options, self._outputs)
                head.give_up_first(self._outputs, now.monotonic_ns)
        self._settle(followed, now)

    def _let_in(self, now: Moment) -> None:
        """Follow those that wait for room, as far as there is some."""
        self._wake_known = False
        for _ in range(len(self._crowd)):
            if self.reads_history or not self._sources.make_room():
                return
            _, crowded = self._crowd.take()
            if crowded.token is not None:
                self._declared(crowded.token)
            for sample in crowded.samples:
                self._live(sample, now)
