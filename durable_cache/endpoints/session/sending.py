"""How the samples of one publisher of ours leave: stamped, with their source and number.

What is the same for all of them is read once: each word with Zenoh costs as much as a put decides.
"""

from __future__ import annotations

import zenoh
from zenoh import Publisher, Session, SourceInfo

from durable_cache.endpoints.session.arguments import CONGESTION, PRIORITY, Origins
from durable_cache.endpoints.session.decoding import new_timestamp, raw_timestamp
from durable_cache.model.sample import Kind, Qos, Sample

__all__ = ["Outlet", "new_stamp", "send"]

_PUT = Kind.PUT


class Outlet:
    """A publisher on its session; `encoding` is the one that it was declared with."""

    __slots__ = (
        "delete",
        "encoding",
        "entity",
        "locality",
        "new_timestamp",
        "put",
        "session",
        "zid",
    )

    def __init__(
        self, session: Session, publisher: Publisher, encoding: str, destination: Origins
    ) -> None:
        self.session = session
        self.put = publisher.put
        self.delete = publisher.delete
        self.encoding = encoding
        self.locality = destination.locality
        self.entity = publisher.id
        self.new_timestamp = session.new_timestamp
        self.zid = raw_timestamp(new_timestamp(session))[1]
        """The id of the session's clock, which all its stamps bear."""


def new_stamp(outlet: Outlet) -> tuple[zenoh.Timestamp, int, str]:
    """Return a stamp of the session's clock, also as (NTP64, id)."""
    stamp = outlet.new_timestamp()
    return stamp, int(str(stamp.get_time_as_ntp64())), outlet.zid


def send(outlet: Outlet, sample: Sample, key: str | None, stamp: zenoh.Timestamp) -> None:
    """Publish a sample with its source, number and stamp, on one key of a wildcard publisher."""
    info = SourceInfo(outlet.entity, sample.sn)
    attachment = sample.attachment
    if key is not None:
        _send_on(outlet, key, sample, stamp, info)
    elif sample.kind is not _PUT:
        outlet.delete(attachment=attachment, timestamp=stamp, source_info=info)
    elif sample.encoding == outlet.encoding:  # the publisher's own: Zenoh need not read it again
        if attachment is None:  # as every argument, it costs as much as a call of ours
            outlet.put(sample.payload, timestamp=stamp, source_info=info)
        else:
            outlet.put(sample.payload, attachment=attachment, timestamp=stamp, source_info=info)
    else:
        outlet.put(
            sample.payload,
            encoding=sample.encoding,
            attachment=attachment,
            timestamp=stamp,
            source_info=info,
        )


def _send_on(
    outlet: Outlet, key: str, sample: Sample, stamp: zenoh.Timestamp, info: SourceInfo
) -> None:
    qos = Qos.unpack(sample.qos)
    if sample.kind is _PUT:
        outlet.session.put(
            key,
            sample.payload,
            encoding=sample.encoding,
            congestion_control=CONGESTION[qos.congestion],
            priority=PRIORITY[qos.priority],
            express=qos.express,
            attachment=sample.attachment,
            timestamp=stamp,
            allowed_destination=outlet.locality,
            source_info=info,
        )
    else:
        outlet.session.delete(
            key,
            congestion_control=CONGESTION[qos.congestion],
            priority=PRIORITY[qos.priority],
            express=qos.express,
            attachment=sample.attachment,
            timestamp=stamp,
            allowed_destination=outlet.locality,
            source_info=info,
        )
