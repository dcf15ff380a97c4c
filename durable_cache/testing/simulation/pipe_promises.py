"""What a pipe promises, compared with the truth as it happens.

A sample is confirmed when enough caches of the target network hold it, and its consumer, where one
is named, confirmed it; never before. The runs of a source go over one after the other. What is
given up or was lost before is reported, and nothing else is missing at the end. After a rewind
everything from there on is processed again, in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import DeadLetter, decode_dead_letter
from durable_cache.protocol.pipe.engine import PipeEngine
from durable_cache.protocol.pipe.tokens import name_of_unnamed
from durable_cache.protocol.publisher.events import Resend
from durable_cache.testing.simulation.truth import Numbering, Publication, Truth
from durable_cache.testing.simulation.world import World

if TYPE_CHECKING:
    from durable_cache.testing.simulation.pipe_ends import Kept, SimConsumer, SimTarget

ATTEMPTS_MAX = 3
"""How often a handler is called before a sample becomes a dead letter."""


class PipePromise:
    """What one pipe and the consumer behind it have done, over all their lives."""

    def __init__(self, world: World, truth: Truth, acknowledgements: int) -> None:
        self._world, self._truth = world, truth
        self._enough = acknowledgements
        self.targets: Sequence[SimTarget] = ()
        self.consumer: SimConsumer | None = None
        """The one that must process what is confirmed; None: caches are enough."""
        self.rows: dict[SourceId, list[Publication]] = {}
        """What each source published, run after run."""
        self._places: dict[Publication, int] = {}
        self.lost: set[Publication] = set()
        """What the source network lost before the pipe took it."""
        self.reported: set[Publication] = set()
        """What the pipe's consumer was told is lost."""
        self.given_up: set[Publication] = set()
        self.confirmed: set[Publication] = set()
        """What was confirmed in some life."""
        self._handed_out: set[Publication] = set()
        self._given_up_now: set[Publication] = set()
        self._confirmed_now: set[Publication] = set()
        self._sent_now: Counter[tuple[str, Publication | None]] = Counter()
        """How often each went to each cache in this life."""
        self._reached: dict[SourceId, int] = {}
        self._reached_now: dict[SourceId, int] = {}
        self.poison: set[Publication] = set()
        """What no handler can process."""
        self._attempts_now: Counter[Publication] = Counter()
        self._buried: set[Publication] = set()
        self._due_again: set[Publication] = set()
        """What was rewound and did not come again yet."""

    def name_of(self, numbering: Numbering) -> str:
        """Return by which incarnation a run goes in the target network."""
        return numbering.incarnation or name_of_unnamed(numbering.source, numbering.epoch)

    def will_never_come(self, publication: Publication) -> bool:
        """Tell whether the target network was told that it will not get this one."""
        return publication in self.reported or publication in self.given_up

    def published(self, publication: Publication) -> None:
        """Hear of a publication; those of a source come in their order, run after run."""
        row = self.rows.setdefault(publication.sample.source, [])
        self._places[publication] = len(row)
        row.append(publication)

    # The pipe

    def began(self) -> None:
        """Hear that a life of the pipe begins."""
        self._handed_out, self._confirmed_now, self._given_up_now = set(), set(), set()
        self._sent_now = Counter()

    def handed_out(self, publication: Publication) -> None:
        """Hear that the pipe took a sample."""
        if publication in self._handed_out:
            self._fail("is handed to the pipe twice in one life", publication)
        if publication in self.confirmed:
            self._world.occur("carried again after a crash")
        self._handed_out.add(publication)

    def sent(self, resend: Resend) -> None:
        """Judge a frame: of one run, in its order, and behind all of the runs before."""
        sns = [sample.sn for sample in resend.samples]
        if sns != sorted(set(sns)):
            self._world.fail(f"a frame is out of order: {sns}")
        publication = self._truth.of(resend.samples[0])
        if publication is None:
            return  # the cache says so
        self._sent_now.update((resend.cache_id, self._truth.of(one)) for one in resend.samples)
        if resend.incarnation != self.name_of(publication.numbering):
            self._fail(f"goes over under another name, {resend.incarnation}", publication)
        for earlier in self._truth.numberings[resend.source][: publication.numbering.at]:
            for one in earlier.published.values():
                if one in self._handed_out and not self._is_over(one):
                    self._fail("is overtaken by the run behind it", one)

    def _is_over(self, publication: Publication) -> bool:
        return publication in self.given_up or self.holders(publication) >= self._enough

    def holders(self, publication: Publication) -> int:
        """Return how many caches of the target network hold it, or held it and removed it."""
        return sum(
            publication in target.held or publication in target.removed for target in self.targets
        )

    def gave_up(self, sample: Sample) -> None:
        """Hear that a sample was reported: a cache has to store something else there."""
        publication = self._truth.of(sample)
        assert publication is not None
        if not any(publication in target.conflicts for target in self.targets):
            self._fail("is given up, and every cache would take it", publication)
        self.given_up.add(publication)
        self._given_up_now.add(publication)

    def confirms(self, samples: Iterable[Sample], kept: Kept | None) -> None:
        """Judge what the pipe confirms; `kept` is what it may know of its consumer."""
        for sample in samples:
            publication = self._truth.of(sample)
            assert publication is not None
            if publication in self._confirmed_now:
                self._fail("is confirmed twice", publication)
            self._confirmed_now.add(publication)
            self.confirmed.add(publication)
            if publication in self.given_up:
                continue
            if not self._is_over(publication):
                self._fail("is confirmed before caches hold it", publication)
            name = self.name_of(publication.numbering)
            if kept is not None and not kept.confirms(publication, name):
                self._fail("is confirmed before it is processed", publication)

    # The consumer behind it

    def consumer_began(self) -> None:
        """Hear that a life of the consumer begins."""
        self._reached_now = {}
        self._attempts_now.clear()

    @property
    def processed_now(self) -> list[Publication]:
        """What the consumer came to, of any source, in the order of its publication."""
        return [
            one
            for one in self._truth.publications
            if self._place(one) <= self._reached.get(one.sample.source, -1)
            and not self.will_never_come(one)
        ]

    def rewound(self, first: Mapping[SourceId, Publication] | None) -> None:
        """Hear from where on samples come again; None: from the beginning, all of them."""
        self._reached_now = {}
        self._attempts_now.clear()
        for one in self.processed_now:
            begins = None if first is None else first.get(one.sample.source)
            if first is None or (begins is not None and self._place(begins) <= self._place(one)):
                self._due_again.add(one)

    def resumed_behind(self, publication: Publication) -> None:
        """Judge what the consumer takes for confirmed: it had it once."""
        source = publication.sample.source
        place = self._place(publication)
        if place > self._reached.get(source, -1) and not self.will_never_come(publication):
            self._fail("is taken for processed and never was", publication)
        if publication in self._due_again:
            self._fail("was rewound, and does not come again", publication)
        self._reached_now[source] = place

    def processed(self, publication: Publication) -> None:
        """Judge what the consumer is given: in order, nothing left out."""
        source, place = publication.sample.source, self._place(publication)
        before = self._reached_now.get(source)
        if before is not None and place <= before:
            self._fail("is processed out of order", publication)
        row = self._row(source)
        for one in row[(-1 if before is None else before) + 1 : place]:
            if not self.will_never_come(one):
                self._fail("is left out by the consumer", one)
        if publication in self._due_again:
            self._due_again.remove(publication)
            self._world.occur("processed again after a rewind")
        elif place <= self._reached.get(source, -1):
            self._world.occur("processed again after a crash")
        self._reached[source] = max(place, self._reached.get(source, -1))
        self._reached_now[source] = place

    def attempted(self, publication: Publication) -> None:
        """Hear that a handler raised."""
        self._attempts_now[publication] += 1

    def buried(self, publication: Publication) -> None:
        """Judge that a sample is passed over: it was tried, and some cache holds its letter."""
        if self._attempts_now.pop(publication) != ATTEMPTS_MAX:
            self._fail("became a dead letter after another number of attempts", publication)
        if not any(self._letters(target, publication) for target in self.targets):
            self._fail("is passed over, and no cache holds its letter", publication)
        self._buried.add(publication)
        self.processed(publication)

    def _letters(self, target: SimTarget, publication: Publication) -> list[DeadLetter]:
        letters = map(decode_dead_letter, target.letters.values())
        return [one for one in letters if self._truth.of(one.sample) is publication]

    def _check_letters(self) -> None:
        """Judge the dead letters: one of each that no handler could process, and of nothing else.

        Who was killed before it knew that its letter is held writes it once more, under its key.
        """
        for publication in self._truth.publications:
            found = [self._letters(target, publication) for target in self.targets]
            if any(len(letters) > 1 for letters in found):
                self._fail("has two dead letters in one cache", publication)
            if publication not in self._buried:
                due = publication in self.poison and not self.will_never_come(publication)
                if due or (publication not in self.poison and any(found)):
                    self._fail("has a dead letter, or has none, and should not", publication)
                continue
            for letter in (one for letters in found for one in letters):
                reason = f"number {publication.sample.sn} is poison"
                if (letter.reason, letter.attempts) != (reason, ATTEMPTS_MAX):
                    self._fail(f"has a dead letter that says {letter.reason}", publication)

    def _row(self, source: SourceId) -> list[Publication]:
        return self.rows.get(source, [])

    def _place(self, publication: Publication) -> int:
        return self._places[publication]

    # The end

    @property
    def all_over(self) -> bool:
        """Whether all is confirmed or reported, and processed: nothing is to come any more."""
        return len(self.confirmed | self.reported) == len(self._truth.publications) and (
            self.consumer is None
            or (
                (not self._due_again - self.reported - self.given_up)
                and all(self._reached.get(s, -1) >= self._last_due(s) for s in self.rows)
            )
        )

    def _last_due(self, source: SourceId) -> int:
        due = (one for one in reversed(self._row(source)) if not self.will_never_come(one))
        last = next(due, None)
        return -1 if last is None else self._place(last)

    def check_counts(self, engine: PipeEngine) -> None:
        """Judge what the pipe says of itself in its last life, R and UR too."""
        taken, given_up = self._handed_out, self._handed_out & self._given_up_now
        again = sum(times - 1 for times in self._sent_now.values())
        wanted = len(taken), len(taken - given_up), len(given_up), 0, again
        said = engine.taken, engine.passed, engine.given_up, engine.lost, engine.repeated
        if said != wanted:
            self._world.fail(
                f"the pipe took, passed on, gave up, lost and sent again {said}, not {wanted}"
            )

    def check(self) -> None:
        """Judge the end: each publication is there once, confirmed and processed, or reported."""
        for publication in self._truth.publications:
            if publication in self.lost:
                if publication not in self.reported:
                    self._fail("was lost before the pipe, and nobody said so", publication)
                continue
            if publication not in self.confirmed:
                self._fail("is not confirmed at the end", publication)
            if publication not in self.given_up and self.holders(publication) < self._enough:
                self._fail("is not held at the end", publication)
        consumer = self.consumer
        if consumer is None:
            return
        self._check_letters()
        for publication in self._due_again:
            if not self.will_never_come(publication):
                self._fail("was rewound, and did not come again", publication)
        for source in self._truth.numberings:
            row = [one for one in self._row(source) if not self.will_never_come(one)]
            if row and self._reached.get(source, -1) < self._place(row[-1]):
                self._fail("is not processed at the end", row[-1])
            if consumer.transacts:
                self._check_effects(source, consumer.table)

    def _check_effects(self, source: SourceId, table: Iterable[Publication]) -> None:
        """Each has one effect, in order; one that some cache did not take may have one, too."""
        effects = [one for one in table if one.sample.source == source]
        places = [self._place(one) for one in effects]
        if places != sorted(set(places)):
            self._world.fail(f"{source} has effects twice or out of order: {places}")
        for one in {*self._row(source)} - {*effects} - self._buried:
            if not self.will_never_come(one):
                self._fail("has no effect", one)

    def _fail(self, finding: str, publication: Publication) -> None:
        run, sample = publication.numbering, publication.sample
        self._world.fail(f"{sample.source} run {run.at} number {sample.sn} {finding}")
