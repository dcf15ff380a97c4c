"""Our samples under the names and with the types that zenoh-python gives to its own.

Zenoh's sample cannot be made in Python, and what comes from a cache was never one.
"""

from __future__ import annotations

from typing import NamedTuple

import zenoh
from zenoh import CongestionControl, Encoding, KeyExpr, Priority, SampleKind, Timestamp, ZBytes

from durable_cache.endpoints.session.arguments import CONGESTION, PRIORITY
from durable_cache.endpoints.session.decoding import build_timestamp
from durable_cache.model.sample import Kind, Qos, Sample, SourceId
from durable_cache.model.unnumbered import is_unnumbered


class SourceInfo(NamedTuple):
    """Who published a sample, under which number; zenoh's names for it."""

    source_id: SourceId
    source_sn: int


class ZenohSample:
    """A sample by zenoh-python's names; immutable, shared freely.

    `sample` is what it stands for.
    """

    __slots__ = ("sample",)

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def __repr__(self) -> str:
        return f"ZenohSample({self.sample!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZenohSample) and self.sample == other.sample

    def __hash__(self) -> int:
        return hash(self.sample.identity)

    @property
    def key_expr(self) -> KeyExpr:
        return KeyExpr(self.sample.key)

    @property
    def payload(self) -> ZBytes:
        return ZBytes(self.sample.payload)

    @property
    def kind(self) -> SampleKind:
        return SampleKind.PUT if self.sample.kind is Kind.PUT else SampleKind.DELETE

    @property
    def encoding(self) -> Encoding:
        return Encoding(self.sample.encoding)

    @property
    def timestamp(self) -> Timestamp | None:
        """The publisher's timestamp, up to a nanosecond too late; None where it gave none.

        Zenoh's Python cannot make it exact; `sample.ntp64` is.
        """
        if self.sample.stamped:
            return None
        return build_timestamp(self.sample.ntp64, self.sample.timestamp_id)

    @property
    def congestion_control(self) -> CongestionControl:
        return CONGESTION[Qos.unpack(self.sample.qos).congestion]

    @property
    def priority(self) -> Priority:
        return PRIORITY[Qos.unpack(self.sample.qos).priority]

    @property
    def express(self) -> bool:
        return Qos.unpack(self.sample.qos).express

    @property
    def attachment(self) -> ZBytes | None:
        attachment = self.sample.attachment
        return None if attachment is None else ZBytes(attachment)

    @property
    def source_info(self) -> SourceInfo | None:
        """Who published it; None for a sample without a number."""
        if is_unnumbered(self.sample.source):
            return None
        return SourceInfo(self.sample.source, self.sample.sn)

    @property
    def timestamp_stack(self) -> zenoh.TimestampStack | None:
        """None: caches do not keep at which hops a sample passed."""
        return None
