"""A reliable publisher under zenoh.ext's names."""

from __future__ import annotations

from durable_cache.endpoints.advanced.configs import CacheConfig, MissDetectionConfig, check_ours
from durable_cache.endpoints.closing import Closing
from durable_cache.endpoints.key_expressions import parse_key_expr
from durable_cache.endpoints.publisher import PublisherOptions, ReliablePublisher
from durable_cache.endpoints.session import (
    CongestionControl,
    Encoding,
    IntoBytes,
    IntoEncoding,
    IntoKeyExpr,
    KeyExpr,
    Locality,
    Origins,
    Priority,
    Reliability,
    Session,
    Timestamp,
    TimestampInstrumentation,
    check_session,
    read_encoding,
    zenoh_qos,
)
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_flag, refused
from durable_cache.model.sample import SourceId


class AdvancedPublisher(Closing):
    """A publisher whose samples are numbered, kept and recovered; any thread may put.

    `reliable` is the publisher of ours that it stands for.
    """

    def __init__(
        self, reliable: ReliablePublisher[None], key_expr: str, options: PublisherOptions
    ) -> None:
        self.reliable = reliable
        self._key_expr = key_expr
        self._congestion_control, self._priority = zenoh_qos(options.quality)
        encoding = "zenoh/bytes" if options.encoding is None else read_encoding(options.encoding)
        self._encoding = Encoding(encoding)

    @property
    def id(self) -> SourceId:
        """The global id that every sample carries, with zenoh's `zid` and `eid`."""
        return self.reliable.source

    @property
    def key_expr(self) -> KeyExpr:
        return KeyExpr(self._key_expr)

    @property
    def encoding(self) -> Encoding:
        return self._encoding

    @property
    def congestion_control(self) -> CongestionControl:
        return self._congestion_control

    @property
    def priority(self) -> Priority:
        return self._priority

    def put(
        self,
        payload: IntoBytes,
        *,
        encoding: IntoEncoding | None = None,
        attachment: IntoBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
    ) -> None:
        """Publish a value; raises what `ReliablePublisher.put` does."""
        _refuse_instrumentation(timestamp_instrumentation)
        self.reliable.put(payload, encoding=encoding, attachment=attachment, timestamp=timestamp)

    def delete(
        self,
        *,
        attachment: IntoBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
    ) -> None:
        """Publish that the key has no value any more; numbered and kept like a put."""
        _refuse_instrumentation(timestamp_instrumentation)
        self.reliable.delete(attachment=attachment, timestamp=timestamp)

    def close(self) -> None:
        """Undeclare; idempotent."""
        self.reliable.close()

    undeclare = close


def _refuse_instrumentation(given: object) -> None:
    if given is not None:
        raise refused(
            "timestamp_instrumentation", given, "None: caches keep no stamps of the way (leave out)"
        )


def declare_advanced_publisher(  # noqa: PLR0913  # one call, as zenoh.ext has it
    session: Session,
    key_expr: IntoKeyExpr,
    *,
    encoding: IntoEncoding | None = None,
    congestion_control: CongestionControl | None = None,
    priority: Priority | None = None,
    express: bool | None = None,
    reliability: Reliability | None = None,
    allowed_destination: Locality | None = None,
    cache: CacheConfig | None = None,
    sample_miss_detection: MissDetectionConfig | None = None,
    publisher_detection: bool | None = None,
) -> AdvancedPublisher:
    """Declare a publisher as `zenoh.ext.declare_advanced_publisher` does.

    Samples are numbered with or without `sample_miss_detection`, which adds heartbeats. The default
    congestion control blocks, where zenoh's drops. Raises ConfigError that names the argument
    nobody can work with.
    """
    if cache is not None:
        check_ours("cache", cache, CacheConfig)
    detection = sample_miss_detection or MissDetectionConfig()
    check_ours("sample_miss_detection", detection, MissDetectionConfig)
    if publisher_detection is not None:
        check_flag("publisher_detection", publisher_detection)
    parsed = parse_key_expr(key_expr)
    if not parsed.is_key:
        raise ConfigError(f"key_expr: an advanced publisher is on one key, and {parsed} is not one")
    options = PublisherOptions(
        cache=cache is not None,
        history=1 if cache is None else cache.samples,
        encoding=encoding,
        congestion_control=congestion_control,
        priority=priority,
        express=express,
        reliability=reliability,
        allowed_destination=Origins.ANY if allowed_destination is None else allowed_destination,
        heartbeat_seconds=detection.period_seconds,
        heartbeat_sporadic=detection.sporadic_heartbeat is not None,
        detectable=bool(publisher_detection),
    )
    reliable = ReliablePublisher[None](check_session(session), parsed, options.checked())
    return AdvancedPublisher(reliable, str(parsed), options)
