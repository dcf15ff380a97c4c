"""What a mode without recovery passes on, compared with what the network brought.

Which of it is passed on, which numbers are reported, and R and UR are known exactly: such a mode
asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

from durable_cache.model.delivery import DeliveryMode, DeliveryRates
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import frame
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.modes import Deduplication, Mode
from durable_cache.protocol.subscriber.arriving import ArrivingEngine
from durable_cache.protocol.subscriber.events import Declared, Deliver, Event, Missed, Received
from durable_cache.testing.simulation.publishers import PublisherToken
from durable_cache.testing.simulation.truth import Numbering, Publication, Truth
from durable_cache.testing.simulation.world import World


class Listening:
    """One life of a listener in one mode, with the real engine."""

    def __init__(self, world: World, truth: Truth, name: str, mode: Mode) -> None:
        self._world, self._truth, self._name, self.mode = world, truth, name, mode
        self._engine = ArrivingEngine(mode)
        self.came: list[Publication] = []
        """What the network brought, in that order."""
        self.passed: list[Publication] = []
        """What was passed on, in that order."""
        self._reported: dict[tuple[SourceId, int], list[int]] = {}
        self._met: dict[Numbering, int] = {}
        """By which epoch each run goes here: by none where a sample came before its token."""
        self._declared: set[str] = set()
        self._in_sight: set[str] = set()
        """The runs that are known to have begun within sight: all their numbers are awaited."""
        self._began_ns = world.moment().unix_ns
        self._engine.start(world.moment())

    def declared(self, token: PublisherToken, *, listed: bool = False) -> None:
        """Hear a publisher's token; `listed`: it may have been there before this life."""
        source, epoch, name = token.source, token.epoch, token.incarnation
        follows = any(run.source == source for run in self._met)
        strange = name not in self._declared | {run.incarnation for run in self._met}
        if strange and (follows or (not listed and epoch >= frame(self._began_ns))):
            self._in_sight.add(name)
        self._declared.add(name)
        self._handle(Declared(source, epoch, name, self._world.moment(), listed))

    def arrived(self, publication: Publication) -> list[Sample]:
        """Take a sample off the network; return what is passed on of it."""
        self.came.append(publication)
        run = publication.numbering
        self._met.setdefault(run, run.epoch if run.incarnation in self._declared else 0)
        return self._handle(Received([publication.sample], self._world.moment()))

    @property
    def losses(self) -> Losses:
        """What it counts."""
        return self._engine.losses

    def _handle(self, event: Event) -> list[Sample]:
        passed_on: list[Sample] = []
        for output in self._engine.handle(event):
            match output:
                case Deliver(samples, _, passed):
                    self.losses.passed_on(samples, passed)
                    for sample in samples:
                        self._pass(sample)
                    passed_on += samples
                case Missed(source, epoch, first, last):
                    self._world.occur("reported")
                    self.losses.lost(source, last - first + 1)
                    numbers = self._reported.setdefault((source, epoch), [])
                    numbers += range(first, last + 1)
                case _:
                    self._world.fail(f"{self._name} asks somebody: {output}")
        return passed_on

    def _pass(self, sample: Sample) -> None:
        publication = self._truth.of(sample)
        if publication is None:
            self._world.fail(f"{self._name} is given what nobody published: {sample}")
            return
        if sample.epoch != self._met[publication.numbering]:
            self._world.fail(f"{self._name} is given {sample.sn} of another run, {sample.epoch}")
        if publication in self.passed:
            self._world.occur("passed on again")
        elif sample.sn in self._reported.get((sample.source, sample.epoch), ()):
            self._world.occur("found after its report")
        self.passed.append(publication)

    def check(self, numberings: Iterable[Numbering]) -> None:
        """Judge what was passed on and reported of one source, and its R and UR."""
        unique = lost = received = 0
        source: SourceId | None = None
        for numbering in numberings:
            source = numbering.source
            came = [one for one in self.came if one.numbering is numbering]
            given = [one for one in self.passed if one.numbering is numbering]
            missing = self._check_run(numbering, came, given)
            unique, lost, received = (
                unique + len({*given}),
                lost + len(missing),
                received + len(came),
            )
        rates = [row.rates for row in self.losses.rows() if row.source == source]
        if unique and rates != [DeliveryRates.measured(unique + lost, received, unique)]:
            wanted = unique, lost, received
            self._world.fail(f"{self._name} has R and UR {rates}, not {wanted}")

    def _check_run(
        self, numbering: Numbering, came: list[Publication], given: list[Publication]
    ) -> set[int]:
        """Judge one run; return which of its numbers are missing."""
        wanted = self._wanted(numbering, came)
        run = f"{numbering.source} run {numbering.at}"
        if given != wanted:
            numbers = [[one.sample.sn for one in part] for part in (given, wanted)]
            self._world.fail(f"{self._name} is given of {run} {numbers[0]}, not {numbers[1]}")
        if len(given) < len(came):
            self._world.occur("discarded")
        if not came:
            return set()
        top = max(one.sample.sn for one in came)
        awaited = range(self._first(numbering, came), top + 1)
        missing = {*awaited} - {one.sample.sn for one in given}
        reported = self._reported.get((numbering.source, self._met[numbering]), [])
        if len(reported) != len({*reported}):
            self._world.fail(f"{self._name} reports numbers of {run} twice")
        if not missing <= {*reported}:
            self._world.fail(f"{self._name} says nothing of {run} {missing - {*reported}}")
        return missing

    def _first(self, numbering: Numbering, came: list[Publication]) -> int:
        """Return the first number that is awaited of a run."""
        if numbering.incarnation in self._in_sight:
            return 0
        if self.mode.deduplication is Deduplication.INDEX:
            return came[0].sample.sn
        return min(one.sample.sn for one in came)

    def _wanted(self, numbering: Numbering, came: list[Publication]) -> list[Publication]:
        """Return what a mode passes on of what came of one run, as the page says it."""
        if self.mode.delivery is DeliveryMode.UNRELIABLE:
            return came
        if self.mode.deduplication is Deduplication.ID:
            return [*dict.fromkeys(came)]
        wanted: list[Publication] = []
        last = self._first(numbering, came) - 1 if came else -1
        for one in came:
            sn = one.sample.sn
            if sn == last + 1 or (sn > last and not self.mode.next_only):
                last = sn
                wanted.append(one)
        return wanted
