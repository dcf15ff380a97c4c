"""Classic publishers whose samples can be kept from the network, and what a test asks of caches."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event

import msgspec
import zenoh

from durable_cache import (
    ReliabilityCache,
    Sample,
    declare_reliable_publisher,
)
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import source_of, zid_of
from durable_cache.testing.network import wait_until


@dataclass
class Numbered:
    """A classic publisher whose samples carry SourceInfo; it can keep one from the network."""

    session: zenoh.Session
    key: str
    publisher: zenoh.Publisher = field(init=False)

    def __post_init__(self) -> None:
        self.publisher = self.session.declare_publisher(self.key)

    def put(
        self,
        sn: int,
        payload: bytes = b"",
        *,
        lost: bool = False,
        key: str = "",
        timestamp: zenoh.Timestamp | None = None,
        attachment: bytes | None = None,
    ) -> None:
        """Publish number `sn`; a lost one reaches only what is declared on the same session.

        One that is published after its turn bears the `timestamp` of its turn: a number that comes
        back with a later time begins a run.
        """
        locality = zenoh.Locality.SESSION_LOCAL if lost else zenoh.Locality.ANY
        self.session.put(
            key or self.key,
            payload or b"%d" % sn,
            source_info=zenoh.SourceInfo(self.publisher.id, sn),
            timestamp=timestamp or self.session.new_timestamp(),
            attachment=attachment,
            congestion_control=zenoh.CongestionControl.BLOCK,
            allowed_destination=locality,
        )

    def delete(self, sn: int, timestamp: zenoh.Timestamp) -> None:
        """Publish number `sn` as a delete, at a time that may be of another clock."""
        self.session.delete(
            self.key,
            source_info=zenoh.SourceInfo(self.publisher.id, sn),
            timestamp=timestamp,
            congestion_control=zenoh.CongestionControl.BLOCK,
        )

    @property
    def prefix(self) -> str:
        return str(source_of(self.publisher))


def connected(publisher: zenoh.Publisher | zenoh.Querier) -> None:
    wait_until(lambda: publisher.matching_status.matching, what="matching")


def make_known(session: zenoh.Session) -> None:
    """Wait until the router knows what a session declared; what is put before is for nobody.

    A link has one order: the router answers behind the declarations.
    """
    assert not list(session.get("nobody/answers", timeout=10))


def stored(cache: ReliabilityCache, count: int) -> list[Sample]:
    wait_until(lambda: cache.status().appended >= count, what=f"{count} stored samples")
    return cache.find(str(cache.key_exprs[0]))


def ask(session: zenoh.Session, selector: str) -> list[Sample]:
    gathered = Asking(session, zid_of(session), timeout_seconds=5).select(selector)
    assert not gathered.errors
    return sorted(gathered.samples.values(), key=lambda sample: sample.sn)


def unreceived(sample: Sample) -> Sample:
    """Leave out when it was received: the publisher's own cache had it a little earlier."""
    return msgspec.structs.replace(sample, received_ns=0)


def sns(samples: list[Sample]) -> list[int]:
    return [sample.sn for sample in samples]


def ready_publisher(session: zenoh.Session, key_expr: str, **settings: object):  # type: ignore[no-untyped-def]
    publisher = declare_reliable_publisher(session, key_expr, **settings)  # type: ignore[arg-type]
    connected(publisher._publisher)
    return publisher


class Inbox:
    """A subscriber's handler that tells when a session reaches it.

    A publisher with a cache on its own session is matched before any subscriber elsewhere is known.
    """

    PROBE = "a/probe"

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._reached = Event()

    def __call__(self, sample: Sample) -> None:
        if sample.key == self.PROBE:
            self._reached.set()
        else:
            self.samples.append(sample)

    def await_path_from(self, session: zenoh.Session) -> None:
        """Wait until what `session` publishes comes here."""

        def probe() -> bool:
            session.put(self.PROBE, b"")
            return self._reached.is_set()

        wait_until(probe, what="a path to the subscriber")


def await_path(source: zenoh.Session, target: zenoh.Session) -> None:
    """Wait until what `source` publishes comes to what `target` has declared by now."""
    reached = Event()
    probe = f"probe/{zid_of(target)}"
    subscriber = target.declare_subscriber(probe, lambda _: reached.set())

    def is_reached() -> bool:
        source.put(probe, b"")
        return reached.is_set()

    wait_until(is_reached, what="a path from session to session")
    subscriber.undeclare()
