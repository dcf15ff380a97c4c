"""What can be chosen of a reliable publisher."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from durable_cache.endpoints.publisher.heartbeats import Heartbeats
from durable_cache.endpoints.session import (
    CongestionControl,
    IntoEncoding,
    Locality,
    Origins,
    Priority,
    Reliability,
    read_encoding,
    read_origins,
    read_qos,
)
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import bounded, check_domain, check_fields, check_number, refused
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.quantities import bytes_of, seconds_of
from durable_cache.model.sample import Qos
from durable_cache.protocol.advisories import check_user
from durable_cache.protocol.publisher.events import EngineOptions
from durable_cache.protocol.publisher.subjects import PUB_WINDOW_SECONDS_MIN
from durable_cache.storage.contract import Durability

if TYPE_CHECKING:
    from durable_cache.endpoints.publisher.spool import Spool


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """A publisher's settings; each default carries its reason. Times in seconds."""

    cache: bool = True
    """Keep samples in this process for recovery."""
    history: int = 1000
    """Newest samples kept, besides those nobody acknowledged yet: a second of a fast sensor."""
    acknowledgements: int = 0
    """Caches that must hold a sample before its receipt is done; 0 wants no receipts."""
    level: Durability | str = Durability.DISK
    """At which level they must hold it."""
    unacknowledged_max: int = 100_000
    """Samples that wait for acknowledgements, all of them kept; further puts wait for room."""
    unacknowledged_bytes_max: int = 256 << 20
    """Bytes of memory they may take: 100,000 samples of 2 kB."""
    unacknowledged_seconds_max: float | None = None
    """How long a sample may wait; then its receipt says `unknown` and the sample is kept no longer.
    None waits for ever."""
    receipts_max: int = 100_000
    """The same bound by its earlier name: the smaller of the two counts."""
    put_timeout_seconds: float = 5.0
    """How long a put waits for room before it raises `Unacknowledged`; 0 raises at once."""
    acknowledgement_delay_seconds: float | None = 0.1
    """How much later than the fastest acknowledgements others may come before puts wait for them,
    where they wait for room, too: a publisher faster than its caches would fill all the room there
    is, and everything would wait for all of it. None: puts wait for room alone."""
    resend_delay_seconds: float = 1.0
    """How long a sample waits for acknowledgements before it is sent once more, to the caches alone
    that lack it: an acknowledgement takes a quarter of a second."""
    resend_seconds_max: float = 10.0
    """The longest pause between resends to a cache; pauses double up to it."""
    resend_samples_max: int = 1_000
    """Samples sent once more in one frame."""
    resend_bytes_max: int = 1 << 20
    """Bytes sent once more in one frame; a cache commits it at once."""
    resend_timeout_seconds: float = 5.0
    """How long a cache may take to say that it will store what was sent once more."""
    epochs_timeout_seconds: float = 0.5
    """How long caches may take to say which epochs of this source they know; 0 asks none."""
    queries_waiting_max: int = 256
    """Questions for the publisher's own cache that wait; further ones go without an answer."""
    acknowledgers_max: int = 256
    """Caches whose acknowledgements are remembered; one forgotten costs time, no receipt."""
    spool_dir: Path | str | None = None
    """A directory of this publisher's own where every put is durable before it is sent, until
    caches hold it; the next publisher on it goes on with what is left. Needs acknowledgements. A
    spool that lost samples raises StorageCorrupt, which says what to do."""
    spool_bytes_max: int = 1 << 30
    """Bytes of samples in the spool; a further put raises StorageFull."""
    auto_dispose_unregistered_instances: bool = False
    """Readers with a profile take its keys for disposed when it unregisters them or leaves."""
    unregistered_max: int = 10_000
    """Keys shown as unregistered; beyond it late readers take the oldest for written still."""
    name: str | None = None
    """What the publisher goes by in tables of losses; None: its source id."""
    domain: str = "default"
    """Caches, publishers and subscribers of one domain work together."""
    qos: Qos | None = None
    """Blocks rather than drops by default."""
    congestion_control: CongestionControl | None = None
    """By Zenoh's name; wins over `qos`, as the next two do."""
    priority: Priority | None = None
    express: bool | None = None
    reliability: Reliability | None = None
    """Which of Zenoh's links samples take, where there are both kinds; None leaves it to Zenoh. Not
    for a publisher with wildcards, whose keys go through the session."""
    allowed_destination: Origins | Locality = Origins.ANY
    """Which sessions get samples as they are put; answers of its own cache go to everybody."""
    heartbeat_seconds: float | None = None
    """How often subscribers and caches are told the last number, so that a lost tail is noticed;
    None says nothing."""
    heartbeat_sporadic: bool = False
    """Tell each number once."""
    subject_sequences: bool = False
    """Count each key by itself too, so that a subscriber of one key knows what it missed of it:
    16 bytes behind the attachment of every sample."""
    pub_window_size: int | str = 4_000_000
    """What the window of these sequences may take in memory, in bytes or as "10 mb"; a key that
    leaves it begins a new time frame."""
    pub_window_time: float | str = 10.0
    """How long a key that is not written stays in it at least, in seconds or as "60 sec"."""
    detectable: bool = False
    """Show the publisher to programs that look for zenoh.ext's advanced publishers."""
    encoding: IntoEncoding | None = None
    """Of every put that names none."""

    def checked(self) -> PublisherOptions:
        """Return the options themselves; ConfigError names what no publisher can work with."""
        cache: object = self.cache
        if not isinstance(cache, bool):
            raise refused("cache", cache, "True or False (history=n says how many samples)")
        check_fields(self)
        counts = (
            "history",
            "receipts_max",
            "unacknowledged_max",
            "unacknowledged_bytes_max",
            "resend_samples_max",
            "resend_bytes_max",
            "queries_waiting_max",
            "acknowledgers_max",
            "spool_bytes_max",
            "unregistered_max",
        )
        for name in counts:
            check_number(name, getattr(self, name), 1, whole=True)
        check_number("acknowledgements", self.acknowledgements, 0, whole=True)
        seconds = (
            *("put_timeout_seconds", "epochs_timeout_seconds", "resend_delay_seconds"),
            *("resend_seconds_max", "resend_timeout_seconds"),
        )
        for name in seconds:
            check_number(name, getattr(self, name), 0, whole=False)
        if self.unacknowledged_seconds_max is not None:
            check_number(
                "unacknowledged_seconds_max", self.unacknowledged_seconds_max, 0, whole=False
            )
        if self.acknowledgement_delay_seconds is not None:
            check_number(
                "acknowledgement_delay_seconds", self.acknowledgement_delay_seconds, 0, whole=False
            )
        if self.heartbeat_seconds is not None:
            check_number("heartbeat_seconds", self.heartbeat_seconds, 0.1, whole=False)
        check_domain(self.domain)
        if self.name is not None:
            check_user(self.name)
        if self.spool_dir is not None and not self.acknowledgements:
            raise ConfigError("spool_dir: without acknowledgements nothing would ever leave it")
        if self.spool_dir == "":
            raise ConfigError('spool_dir: an empty text names no folder; write "." for this one')
        self.pub_window  # noqa: B018  # raises where it is none
        self.quality, self.destination  # noqa: B018  # raise where they are none
        if self.encoding is not None:
            read_encoding(self.encoding)
        self.durability  # noqa: B018  # raises where the level is none
        return bounded(self)

    @property
    def durability(self) -> Durability:
        """The level as a number; ConfigError when it is none."""
        level = self.level
        if isinstance(level, Durability):
            return level
        if isinstance(level, str) and level.upper() in Durability.__members__:
            return Durability[level.upper()]
        raise refused("level", level, "memory, process or disk, or a Durability")

    @property
    def quality(self) -> Qos:
        """The quality of service of every sample; ConfigError names what is none."""
        return read_qos(self.qos, self.congestion_control, self.priority, self.express)

    @property
    def destination(self) -> Origins:
        """Where samples are sent as they are put; ConfigError when it is nowhere."""
        return read_origins(self.allowed_destination, "allowed_destination")

    @property
    def pub_window(self) -> tuple[int, int]:
        """The window's bytes and nanoseconds; ConfigError names what is none."""
        seconds = seconds_of("pub_window_time", self.pub_window_time, 0)
        if seconds < PUB_WINDOW_SECONDS_MIN:
            raise ConfigError(
                f"pub_window_time: {seconds:g} s; at least {PUB_WINDOW_SECONDS_MIN:g} s are due, "
                "for a key that comes back to the window begins a new time frame, and a frame "
                "lasts 8.6 s: it would not be a later one"
            )
        return bytes_of("pub_window_size", self.pub_window_size, 1), round(seconds * 1e9)

    def heartbeats(self) -> Heartbeats | None:
        """Return when to say the last number; None for never."""
        if self.heartbeat_seconds is None:
            return None
        return Heartbeats(self.heartbeat_seconds, sporadic=self.heartbeat_sporadic)

    def open_spool(self, key_expr: KeyExpression) -> Spool | None:
        """Open the spool; None where there is none. Raises what `Spool` does."""
        if self.spool_dir is None:
            return None
        from durable_cache.endpoints.publisher.spool import Spool  # needs a POSIX system

        on, bytes_max = str(key_expr), self.spool_bytes_max
        return Spool(Path(self.spool_dir), self.domain, on, bytes_max=bytes_max)

    def engine_options(self) -> EngineOptions:
        """Return what the pure engine needs to know of these."""
        window_bytes, window_ns = self.pub_window
        return EngineOptions(
            history=self.history if self.cache else None,
            acknowledgements=self.acknowledgements,
            level=int(self.durability),
            unacknowledged_max=min(self.unacknowledged_max, self.receipts_max),
            acknowledgers_max=self.acknowledgers_max,
            ask_epochs=self.epochs_timeout_seconds > 0,
            unacknowledged_bytes_max=self.unacknowledged_bytes_max,
            unacknowledged_seconds_max=self.unacknowledged_seconds_max,
            acknowledgement_delay_seconds=(
                self.acknowledgement_delay_seconds if self.put_timeout_seconds else None
            ),
            resend_delay_seconds=self.resend_delay_seconds,
            resend_seconds_max=self.resend_seconds_max,
            resend_samples_max=self.resend_samples_max,
            resend_bytes_max=self.resend_bytes_max,
            pub_window_bytes=window_bytes if self.subject_sequences else None,
            pub_window_ns=window_ns,
        )


class PublisherSettings(TypedDict, total=False):
    """`PublisherOptions` as named arguments, `acknowledgements` aside."""

    cache: bool
    history: int
    level: Durability | str
    unacknowledged_max: int
    receipts_max: int
    unacknowledged_bytes_max: int
    unacknowledged_seconds_max: float | None
    put_timeout_seconds: float
    acknowledgement_delay_seconds: float | None
    resend_delay_seconds: float
    resend_seconds_max: float
    resend_samples_max: int
    resend_bytes_max: int
    resend_timeout_seconds: float
    epochs_timeout_seconds: float
    queries_waiting_max: int
    acknowledgers_max: int
    spool_dir: Path | str | None
    spool_bytes_max: int
    auto_dispose_unregistered_instances: bool
    unregistered_max: int
    name: str | None
    domain: str
    qos: Qos | None
    congestion_control: CongestionControl | None
    priority: Priority | None
    express: bool | None
    reliability: Reliability | None
    allowed_destination: Origins | Locality
    heartbeat_seconds: float | None
    heartbeat_sporadic: bool
    subject_sequences: bool
    pub_window_size: int | str
    pub_window_time: float | str
    detectable: bool
    encoding: IntoEncoding | None
