"""How a subscriber reads what caches hold, before it follows what is published.

Theory of operation (ADR 0081). Caches are asked for pages in order of time, so that what several
sources wrote under one key comes in the order in which it was written, and a page at a time is
held, however long history is. Of a page, what lies behind the earliest cut of any answer waits for
the next one. Numbers that are missing between others are asked for by number before the page is
delivered: caches give them, or say why they do not; what nobody explains within the gap timeout is
reported.

    asking -> (page) -> explaining -> (delivered) -> asking … -> over
       ^ failed, nobody, not whole: again after a pause, until the time is over

History is over when an answer was whole and not cut. Whatever fails is asked again; when
`history_timeout_seconds` pass without a page, live samples go through and history stays
incomplete: it is asked again from its beginning when a cache or a publisher appears, and every few
seconds where a cache was in reach or somebody answered at all (ADR 0326). What then comes of
sources that are not followed yet is delivered before what follows; what can no longer be delivered
in order is reported.

Who goes on where an earlier life stood begins at a `Seam`, a place in time (ADR 0155). It makes
reading short and decides nothing: wherever a page contradicts it, all is read from the beginning.

Where a link was cut, what was published since the last sample is read alike (`cut_off`, ADR 0185),
for a publisher may have come and gone; so is what a cache holds that was never in reach (`parted`,
ADR 0187), where what was removed of a run that began before us is no loss to who comes late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId, by_run
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.subscriber.events import (
    Answer,
    AskHistory,
    DeliveryOptions,
    Fetch,
    Fetched,
    FetchFailed,
    HistoryFailed,
    HistoryPage,
)
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.held import Held
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.pages import (
    RETRY_NS,
    Called,
    Group,
    Key,
    OnPage,
    in_source_order,
    merged,
    seek_ends,
)
from durable_cache.protocol.subscriber.places import Sources
from durable_cache.protocol.subscriber.reading import Reading, Readings, Seam
from durable_cache.protocol.subscriber.run_names import RunNames, under
from durable_cache.protocol.subscriber.run_table import shorten
from durable_cache.protocol.subscriber.too_large import TooLarge
from durable_cache.protocol.subscriber.twins import Twins, parted, told_apart
from durable_cache.protocol.subscriber.unnumbered import Unnumbered

_SECOND_NS = 1_000_000_000
_RETRY_NS_MAX = _SECOND_NS
"""Before history is asked again: soon after a cache's restart, once a second in the end."""
_EARLIER_NS = 2 * _SECOND_NS
"""How much earlier than the last sample that came the next may have been stamped elsewhere."""
_LATER_NS = 5 * _SECOND_NS
"""The pause between questions once live samples go through: a page that errs may be large."""

_SN = attrgetter("sn")
_FIRST = itemgetter(0)


class History:
    """Reads history page by page; part of the engine.

    `held` and `sources` tell from where on a numbering is delivered that is or was followed live;
    without history `wanted`, it asks for nothing but what a cut made us miss.
    """

    def __init__(
        self,
        options: DeliveryOptions,
        ids: Iterator[int],
        outputs: Outputs,
        held: Held,
        sources: Sources,
        unnumbered: Unnumbered,
        *,
        wanted: bool,
        newest: int = 0,
    ) -> None:
        self._options, self._ids, self._outputs = options, ids, outputs
        self._held, self._sources = held, sources
        self._unnumbered = unnumbered
        self._timeout_ns = round(options.history_timeout_seconds * _SECOND_NS)
        self._newest = self._newest_asked = newest
        """If not 0, pages hold so many of each key: not the end of a run that another followed."""
        self.wanted = self.active = wanted
        """Live samples of sources that are not followed yet wait."""
        self.complete = self._done = not wanted
        """All that is wanted was read whole, once; so was what was asked for last."""
        self.began_ns = 1 << 62  # when its owner came, as Unix time
        self.read_ns = -1  # when all was read whole last, as monotonic time
        self._since_ns: int | None = None
        self._ours_ns: int | None = None
        """Of runs that were not followed, what caches removed is a loss from then on; None: it is
        one of runs that began since `_since_ns`, and of what lies behind their first number."""
        self._readings = Readings()
        self.names = RunNames(options.places_max, self._readings, sources.called, sources.began)
        self._twins = Twins(options.places_max, self._readings, outputs.report)
        self._reached: dict[SourceId, int] = {}
        """The latest epoch of each source of which something was delivered."""
        self._question: int | None = None
        self._after: Sample | None = None
        self.finished: Mapping[SourceId, Sequence[Numbering]] = {}
        """The runs of each source that an earlier life went past."""
        self.begin_at: Seam | None = None
        """Where the first start begins."""
        self.seam: Seam | None = None
        """Where reading began; None: at the beginning."""
        self._due_ns: int | None = None
        self._pause_ns = RETRY_NS
        self._deadline_ns = self._expires_ns = 0
        self.in_reach = self._lacking = self._again = False
        self._partial: Answer | None = None
        self._page: dict[Key, Group] | None = None
        self._in_order: list[Sample] | None = None
        """The page as it came, where that is the order to deliver it in."""
        self._cut: Sample | None = None
        self._fetches: dict[int, Key] = {}
        self._live: list[Sample] = []

    def start(self, now_ns: int) -> None:
        """Ask from the beginning, or at first from a seam; what was delivered is passed over."""
        self.active = True
        self.seam, self.begin_at = self.begin_at, None
        self._after = None if self.seam is None else self.seam.place
        self._lacking = self._again = False
        self._deadline_ns = now_ns + self._timeout_ns
        self._ask()

    def cut_off(self, heard_ns: int, began_ns: int) -> None:
        """The last cache went: when one appears, want what was published since a sample came last.

        What is older than our beginning is none of ours. Nothing changes where all is being asked
        for anyway, for it was not had whole yet.
        """
        if not self.complete or not self._options.recovery:
            return
        since_ns = max(heard_ns - _EARLIER_NS, began_ns)
        if self._since_ns is not None and not self._done:
            since_ns = min(since_ns, self._since_ns)
        else:
            self._ours_ns = None
        self._since_ns, self._done = since_ns, False

    def parted(self, since_ns: int, began_ns: int) -> None:
        """Want what caches hold of that time or later, as who comes late wants it.

        Nothing changes where all is being asked for anyway.
        """
        if not (self.wanted and self.complete):
            return
        if self._since_ns is not None and not self._done:
            since_ns = min(since_ns, self._since_ns)
        self._since_ns, self._ours_ns, self._done = max(0, since_ns), began_ns, False

    @property
    def is_whole(self) -> bool:
        """Whether all that is wanted was read whole: nothing is asked again of whoever appears."""
        return self.wanted and self._done

    def ask_again(self, now_ns: int) -> None:
        """Somebody appeared: what was not answered so far may be answered now."""
        if self._done:
            return
        if not self.active:
            self.start(now_ns)
        elif self._due_ns is not None:
            self._again |= self._after is not None
            self._ask()
        else:
            self._again = True  # it may hold what lies before the page that is read now

    def hear_of(self, numbering: Numbering, last_sn: int, now_ns: int) -> None:
        """Ask from the beginning for a run of which nothing came, and whose numbers reach so far.

        So it is where caches were given it from another network since history was read. Of each
        further number it is asked once.
        """
        nothing_came = numbering.next_sn is None and numbering.declared
        if self.wanted and nothing_came and last_sn > numbering.asked_to:
            numbering.asked_to = last_sn
            self.complete, self._done, self._since_ns, self._ours_ns = False, False, None, None
            self.ask_again(now_ns)

    def owns(self, fetch_id: int) -> bool:
        """Tell whether a fetch is one of history's."""
        return fetch_id in self._fetches

    def wake_times(self) -> list[int]:
        """Return the monotonic times at which there is something to do."""
        times = [] if self._due_ns is None else [self._due_ns]
        if self._page is not None:
            times.append(self._expires_ns)
            waiting = (g for g in self._page.values() if g.missing and g.fetch is None)
            times += [group.due_ns for group in waiting]
        elif self.active:
            times.append(self._deadline_ns)
        return times

    def tick(self, now_ns: int) -> None:
        """Ask again, or let live samples through."""
        if self._page is not None:
            if now_ns >= self._expires_ns:
                self._deliver(now_ns)
            else:
                self._explain(now_ns)
        elif self.active and now_ns >= self._deadline_ns:
            self._lacking = True
            if self._partial is not None:
                self._question = None
                self._take(self._partial, now_ns)
            else:
                self._end(now_ns)
        elif self._due_ns is not None and now_ns >= self._due_ns:
            if self.active:
                self._ask()
            else:
                self.start(now_ns)

    def failed(self, event: HistoryFailed) -> None:
        """A question could not be asked or read: ask it again."""
        if event.question_id == self._question:
            self._question = None
            self._later(event.now.monotonic_ns)

    def take_page(self, event: HistoryPage) -> None:
        """Take an answer: a page, where somebody answered and nobody erred."""
        if event.question_id != self._question:
            return
        self._question = None
        answer, now_ns = event.answer, event.now.monotonic_ns
        self.in_reach |= answer.answerers > 0 or not answer.whole
        if not self.active:
            self.start(now_ns)  # a late answer: somebody is there now
        elif self.seam is not None and answer.answerers > self.seam.answerers:
            self._begin_anew()  # somebody was not asked from where on there is something
        elif answer.answerers and (answer.whole or self._lacking):
            self._take(answer, now_ns)
        else:
            if answer.answerers:
                self._partial = answer  # better than nothing when the time is over
            self._later(now_ns)

    def explained(self, event: Fetched | FetchFailed) -> None:
        """Take what was said about numbers that are missing."""
        key = self._fetches.pop(event.fetch_id)
        group = None if self._page is None else self._page.get(key)
        fetch = None if group is None else group.fetch
        if group is None or fetch is None or fetch.fetch_id != event.fetch_id:
            return
        now_ns, before, group.fetch = event.now.monotonic_ns, group.missing.count, None
        if isinstance(event, Fetched):
            self._fill(key, group, event.answer)
            much = len(group.samples) > 2 * self._options.history_page_samples
            if self.seam is not None and much:
                self._begin_anew()  # it was published before the seam: page by page it fits
                return
            cut = event.answer.cut_after
            if cut is not None and cut != fetch.after and group.missing:
                self._put(key, group, replace(fetch, fetch_id=next(self._ids), after=cut))
                return
        progress = group.missing.count < before
        group.pause_ns = RETRY_NS if progress else min(2 * group.pause_ns, _RETRY_NS_MAX)
        group.due_ns = now_ns if progress else now_ns + group.pause_ns
        self._explain(now_ns)

    def take_live(self) -> list[Sample]:
        """Return what pages brought of numberings that are followed already."""
        live, self._live = self._live, []
        return live

    def take_readings(self) -> tuple[list[tuple[Key, Reading]], list[tuple[Key, Reading]]]:
        """Return, once, how far runs were delivered: what is over, the others in their order."""
        over = [] if self._newest else self._readings.over()
        return over, sorted(self._readings.hand_over(), key=_FIRST)

    def _ask(self) -> None:
        self._due_ns = None
        self._question = next(self._ids)
        samples_max = self._options.history_page_samples
        if self._after is None:
            self.seam = None
        elif self.seam is not None:
            samples_max = self.seam.page_samples(samples_max)
        since_ns, as_wanted = self._since_ns, self._ours_ns is not None
        self._newest_asked = self._newest if since_ns is None or as_wanted else 0
        self._outputs.ask(AskHistory(self._question, self._after, samples_max, since_ns, as_wanted))

    def _begin_anew(self) -> None:
        """Drop the page and read from the beginning."""
        self._page, self._in_order, self._cut, self._after = None, None, None, None
        self._fetches.clear()
        self._ask()

    def _later(self, now_ns: int) -> None:
        self._due_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, _RETRY_NS_MAX)

    def _take(self, answer: Answer, now_ns: int) -> None:
        """Hold a page until what is missing in it is explained."""
        self._partial, self._due_ns, self._pause_ns = None, None, RETRY_NS
        self._lacking |= not answer.whole
        given = self._readings.given(answer.parts)
        parts = self._held.named(answer.parts, self._sources)
        answer = replace(answer, parts=told_apart(parted(parts), given))
        self.names.agree(answer.parts, partial(self._held.shown, self._sources))
        shorten(self._reached, self._options.places_max)
        self._twins.learn(answer.parts, self.names, given)
        stand = self._twins.stand
        every = [s for part in answer.parts for s in self.names.renamed(part, part.samples, stand)]
        samples = merged(answer, every, self._newest_asked)
        self._in_order, self._page = samples, {}
        groups = by_run(samples)
        if self._readings.let_go_read(groups, self.names):
            self._in_order = None
        self._held.recognise(self._sources, groups, self.names.of)
        if not all(map(self._fits_seam, groups)):
            self._begin_anew()
            return
        taken = self._without_later(groups)
        self._deadline_ns, self._cut = now_ns + self._timeout_ns, answer.cut_after
        self._expires_ns = now_ns + round(self._options.gap_timeout_seconds * _SECOND_NS)
        for key, group in taken.items():
            self._take_group(key, group, groups, now_ns)
        if len({source for source, _ in groups}) < len(groups) or len(taken) < len(groups):
            self._in_order = None  # of two runs of a source the later may bear earlier times
        if self._options.recovery:
            known = self._readings, self._sources, self.names
            newest, window = self._newest > 0, self._options.window_size_samples
            if seek_ends(self._page, *known, newest=newest, window=window):
                self._in_order = None
            self._explain(now_ns)
        else:
            self._deliver(now_ns)

    def _take_unnumbered(self, key: Key, samples: list[Sample]) -> None:
        """Take samples that nothing is missing between; passes over what was read before."""
        fresh = self._unnumbered.unread(samples)
        if len(fresh) < len(samples):
            self._in_order = None
        if fresh and self._page is not None:
            self._page[key] = Group(Reading(0, 0), fresh, RangeSet())

    def _take_group(self, key: Key, samples: list[Sample], page: OnPage, now_ns: int) -> None:
        if is_unnumbered(key[0]):
            self._take_unnumbered(key, samples)
            return
        name = self.names.of(key)
        by_sn = {sample.sn: sample for sample in samples if sample.sn < SOURCE_SN_MODULUS}
        sns = sorted(by_sn)
        if not sns:
            return
        catches_up, given_as, over = self._since_ns is not None, key, False
        if not name:
            key, by_sn, over = self._place(key, [by_sn[sn] for sn in sns], page)
        else:
            over = self._held.is_before_shown(self._sources, name, samples, self.reading)
            is_known = over or key in self._readings
            self._sources.let_follow(*key, name, now_ns, is_known=is_known)
            by_sn = by_sn if over else self._with_what_came(key, by_sn, page)
        sns = sorted(by_sn)
        reading = self._held.reading_of(self._sources, *key, name)
        if reading is None or reading.numbering is None:
            late = over or (reading is not None and reading.late)
            late |= self._reached.get(key[0], key[1]) > key[1]  # its successor has begun
            begun = not name and self._held.brought_the_run_before([*by_sn.values()])
            first = None if begun else by_sn[sns[0]]
            default = reading or self._reading_from(key, name, first, page)
            reading = self._readings.setdefault(key, default)
            reading.late = late
            reading.handed_over |= over
            if late:
                reading.next_sn = max(reading.next_sn, default.next_sn)
            shorten(self._readings, self._options.places_max)
        read = self._readings.get(key, reading)
        reading.begins_as_early_as(read)  # under another name, perhaps
        ours, too_late = [sn for sn in sns if sn >= reading.next_sn], reading.too_late(sns)
        if reading.late and reading.began is None:  # what it lacks between is of before us
            too_late, ours = too_late + ours, []
        if reading.late or not catches_up:  # else: of before we came
            for run in reading.tell(too_late, self._options.window_size_samples):
                self._outputs.report(*key, run.first, run.last)
        if reading.numbering is not None:
            reading.numbering.first_sn, reading.numbering.untold = reading.first_sn, reading.untold
            self._live += [by_sn[sn] for sn in ours]
            ours = []
        as_it_came = [sample.sn for sample in samples] == ours
        if reading.late or key != given_as or not as_it_came:
            self._in_order = None
        if ours and self._page is not None:
            self._readings.go_on(key)
            missing = RangeSet([(reading.next_sn, ours[-1])]).difference(RangeSet.of(ours))
            self._page[key] = Group(reading, [by_sn[sn] for sn in ours], missing, given_as)

    def ended(self, run: Numbering) -> None:
        """Remember how far a run was given that is followed no more: a page may bring it again."""
        if run.next_sn is not None:
            read = Reading.of_ended(run)
            self._readings.setdefault(self.names.key_of(run), read).take_over(read)
            shorten(self._readings, self._options.places_max)

    def forget(self, run: Numbering | None) -> None:
        """What was given as a run that ended turned out to be of the next: nothing of it was."""
        if run is not None:
            self._readings.forget(self.names.key_of(run), run.began)

    def reading(self, source: SourceId, name: str) -> Reading | None:
        """Return how far a named run was read, if it was."""
        return self._readings.get((source, self.names.called.get((source, name), -1)))

    def _without_later(self, groups: Mapping[Key, list[Sample]]) -> dict[Key, list[Sample]]:
        """Return what of a page is not left to what waits, nor was followed live."""
        taken = dict(groups)
        if self._since_ns is not None:
            known, of = partial(self._held.was_followed, self._sources), self.names.of
            taken = {k: given for k, given in groups.items() if not known(*k, of(k), given)}
        while later := [key for key in taken if self._comes_later(key, taken)]:
            for key in later:
                del taken[key]
        return taken

    def _comes_later(self, key: Key, page: Mapping[Key, Sequence[Sample]]) -> bool:
        """Tell whether a run is left to what waits: of the run before, something goes first.

        The run began while we looked, so all of it is ours, whoever gives it (ADR 0205, 0250).
        """
        name, source = self.names.of(key), key[0]
        if key in self._readings or source not in self._held or is_unnumbered(source):
            return False
        read = [*self._readings.of(source).values()]
        groups = [group for (of, _), group in page.items() if of == source]
        if not name:
            unknown = self._sources.stands(source) is None
            return unknown and self._held.nameless_goes_first(groups, page[key], read)
        begun = self._held.has_begun(source, name)
        return begun and self._held.goes_first(source, name, groups, read)

    def _place(
        self, key: Key, samples: list[Sample], groups: OnPage
    ) -> tuple[Key, dict[int, Sample], bool]:
        """Return by which epoch a run without a name goes here, its samples, whether it is over.

        What came of it while we looked is among them, in order of numbers.
        """
        (source, epoch), over = key, False
        came = self._held.came_with(samples, self._sources, "")
        page = {key: group.samples for key, group in (self._page or {}).items()}
        unread = self._readings.unread(came, key, page) if came else ()
        samples = sorted([*samples, *unread], key=_SN)
        followed = self._sources.stands(source)
        if followed is not None:
            epoch, over = followed.place(epoch, samples)
        reached = self._reached.get(source, epoch)
        epoch, before = self._readings.place((source, epoch), samples, reached, groups)
        by_sn = {sample.sn: under(sample, epoch) for sample in samples}
        return (source, epoch), by_sn, over or before

    def _with_what_came(
        self, key: Key, by_sn: dict[int, Sample], page: Mapping[Key, Sequence[Sample]]
    ) -> dict[int, Sample]:
        """Return samples of a named run with what came of it while we looked, and nobody has."""
        samples = [by_sn[sn] for sn in sorted(by_sn)]
        came = self._held.came_with(samples, self._sources, self.names.of(key))
        unread = self._readings.unread(came, key, page) if came else ()
        return by_sn | {one.sn: under(one, key[1]) for one in unread}

    def _fits_seam(self, key: Key) -> bool:
        """Tell whether a run is none of a source that an earlier life knew by other runs."""
        if self.seam is None or key[0] not in self.seam.sources:
            return True
        reading = self._held.reading_of(self._sources, *key, self.names.of(key))
        return reading is not None and reading.resumed and not reading.late

    def _reading_from(self, key: Key, name: str, first: Sample | None, page: OnPage) -> Reading:
        """Begin to read a run: with what is there, or with all of it where it began since a cut.

        `first` is the first that is there, or None: all of it is to be.
        Of a run that an earlier life went past, only what lies behind its position is new.
        """
        (source, epoch), runs = key, self.finished.get(key[0], ())
        finished = next((run for run in runs if run.is_called(epoch, name)), None)
        if finished is not None:
            return Reading(0, finished.next_sn or 0, resumed=True)
        first_sn = 0 if first is None else self._readings.first_of(key, first, self.names, page)
        if self._since_ns is None:
            first_sn = 0 if self._sources.began_since(source, epoch, name) else first_sn
            return Reading(first_sn, first_sn)
        if epoch > frame(self._since_ns if self._ours_ns is None else self._ours_ns):
            return Reading(0, 0, resumed=True)
        return Reading(first_sn, first_sn, resumed=self._ours_ns is None)

    def _explain(self, now_ns: int) -> None:
        """Ask for what is missing; deliver the page once nothing is."""
        waits = False
        for key, group in (self._page or {}).items():
            first, last = group.missing.first, group.missing.last
            if first is None or last is None:
                continue
            waits = True
            if group.fetch is None and now_ns >= group.due_ns:
                group.whole = True
                end = None if group.to_end else last
                self._put(key, group, Fetch(next(self._ids), *key, first, end))
        if not waits:
            self._deliver(now_ns)

    def _put(self, key: Key, group: Group, fetch: Fetch) -> None:
        group.fetch, self._fetches[fetch.fetch_id] = fetch, key
        self._outputs.ask(fetch)

    def _fill(self, key: Key, group: Group, answer: Answer) -> None:
        name = self.names.of(key)
        others: set[Key] = set() if name else self._twins.names(key) | {group.given_as or key}
        run = Called(key, name, others)
        if group.fill(answer, run, self.began_ns, (self._page or {}, self._readings)):
            self._in_order = None

    def _deliver(self, now_ns: int) -> None:
        """Pass the page on, with a report for what nobody gave or explained; go on."""
        page, self._page = self._page or {}, None
        for (source, epoch), group in page.items():
            key = source, epoch
            name = self.names.of(key)
            begun = self._held.begun_meanwhile(self._sources, key, name, group.reading)
            if begun is not None:  # its first sample was given live while the page waited
                group.hand_over(key, begun, self._live, self._outputs, ours=self._since_ns is None)
                self._in_order = None
                self._readings.pop(key, None)  # beyond `places_max` it is forgotten
            elif group.reading.late:
                group.report_all(key, self._outputs)
            elif not is_unnumbered(source):
                self._held.note_given(source, group.samples)
                self._reached[source] = max(epoch, self._reached.pop(source, epoch))
        self._fetches.clear()
        samples = self._in_order or in_source_order(page)
        ready = self._outputs.ready
        for sample in samples:
            if is_unnumbered(sample.source):
                if self._unnumbered.read(sample):
                    ready.append(sample)
                continue
            group = page[sample.source, sample.epoch]
            reading = group.reading
            group.finish_before(self._outputs)
            if sample.sn != reading.next_sn:
                hole = RangeSet([(reading.next_sn, sample.sn - 1)]).difference(group.passed)
                for run in hole:
                    self._outputs.report(sample.source, sample.epoch, run.first, run.last)
            reading.next_sn, reading.gone_from = sample.sn + 1, None
            reading.begin(sample, self.names)
            if sample.ntp64 > reading.newest_ntp64:
                reading.newest_ntp64 = sample.ntp64
            if isinstance(sample, TooLarge):
                self._outputs.report(sample.source, sample.epoch, sample.sn, sample.sn)
            else:
                ready.append(sample)
        self._in_order = None
        self._deadline_ns = now_ns + self._timeout_ns
        if self._cut is not None:
            self._after, self._cut = self._cut, None
            self._ask()
        elif self._again:
            self._after, self._again = None, False
            self._ask()
        else:
            self._end(now_ns)

    def _end(self, now_ns: int) -> None:
        """Let live samples through; what is incomplete is asked again later."""
        self.active = False
        self._done = not self._lacking
        self.complete |= self._done
        if self._done and self._since_ns is None:
            self.read_ns = now_ns
        self._due_ns = now_ns + _LATER_NS if self.in_reach and self._lacking else None
