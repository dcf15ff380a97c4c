"""What was really published, and whether what everybody says of it is so.

Each publication carries its number in the attachment, so that what is delivered, stored or answered
is known again whatever epoch an observer gave it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.testing.simulation.questions import holds
from durable_cache.testing.simulation.untold import Untold


@dataclass(slots=True, eq=False)
class Numbering:
    """One run of a publisher's numbers."""

    at: int
    """The how-manieth of all numberings of its source."""
    source: SourceId
    epoch: int
    """As its publisher declared it; 0 where it declared none."""
    publisher: str
    began_ns: int
    incarnation: str = ""
    offset: int = 0
    """The number it begins with: that of the first publication."""
    published: dict[int, Publication] = field(default_factory=dict)
    wraps: bool = False
    """Whether it goes on where the numbers of the run before ended."""
    ended: bool = False
    """Whether another run of the same source followed, or the publisher is gone for good."""


@dataclass(frozen=True, slots=True, eq=False)
class Publication:
    """One sample as it was published."""

    at: int
    numbering: Numbering
    sample: Sample
    at_ns: int


class Truth:
    """Every publication, by its own number and by its place."""

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self._marked: dict[bytes | None, Publication] = {}
        self.numberings: dict[SourceId, list[Numbering]] = defaultdict(list)
        self.incarnations: dict[str, Numbering] = {}
        self.untold = Untold()

    def begin(
        self, source: SourceId, epoch: int, publisher: str, incarnation: str, now_ns: int
    ) -> Numbering:
        """Begin a numbering of a source."""
        numberings = self.numberings[source]
        if numberings:
            numberings[-1].ended = True
        numbering = Numbering(len(numberings), source, epoch, publisher, now_ns, incarnation)
        numbering.wraps = bool(numberings) and SOURCE_SN_MODULUS - 1 in numberings[-1].published
        numberings.append(numbering)
        if incarnation:
            self.incarnations[incarnation] = numbering
        return numbering

    def mark(self) -> bytes:
        """Return the attachment of the next publication."""
        return b"%d" % len(self.publications)

    def publish(self, numbering: Numbering, sample: Sample, now_ns: int) -> Publication:
        """Take a publication."""
        publication = Publication(len(self.publications), numbering, sample, now_ns)
        if not numbering.published:
            numbering.offset = sample.sn
        numbering.published[sample.sn] = publication
        self.publications.append(publication)
        self._marked[b"%d" % publication.at] = publication
        return publication

    def of(self, sample: Sample) -> Publication | None:
        """Return the publication that a sample is of; None where nobody published it so."""
        publication = self._marked.get(sample.attachment)
        if publication is None:
            return None
        genuine = publication.sample
        same = sample is genuine or (
            sample.key == genuine.key
            and sample.source == genuine.source
            and sample.sn == genuine.sn
            and sample.kind == genuine.kind
            and sample.payload == genuine.payload
            and sample.ntp64 == genuine.ntp64
        )
        return publication if same else None

    def was_published_without_a_name(self, source: SourceId, sn: int) -> bool:
        """Tell whether a foreign publisher published a number, in whichever of its runs."""
        runs = self.numberings.get(source, ())
        return any(sn in run.published for run in runs if not run.incarnation)

    def wanted(self, numbering: Numbering, key_expr: KeyExpression) -> list[Publication]:
        """Return what of a numbering is on a key expression, by number."""
        return [
            numbering.published[sn]
            for sn in sorted(numbering.published)
            if holds(key_expr, numbering.published[sn].sample.key)
        ]
