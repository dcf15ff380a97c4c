"""How the samples of one publisher of ours leave: stamped, with their source and number.

What is the same for all of them is read once: each word with Zenoh costs as much as a put decides.
"""

from __future__ import annotations

from collections.abc import Callable

import zenoh
from zenoh import Publisher, Session, SourceInfo

from durable_cache.endpoints.session.arguments import CONGESTION, PRIORITY, Origins
from durable_cache.endpoints.session.decoding import build_timestamp_id
from durable_cache.model.sample import Kind, Qos
from durable_cache.protocol.publisher.events import Send

_PUT = Kind.PUT


class Outlet:
    """A publisher on its session; `encoding` is the one that it was declared with."""

    __slots__ = (
        "_run",
        "delete",
        "encoding",
        "entity",
        "locality",
        "new_stamp",
        "put",
        "session",
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
        self._run: zenoh.TimestampId | None = None
        self.new_stamp: Callable[[], zenoh.Timestamp] = session.new_timestamp
        """Returns a stamp of the session's hybrid logical clock."""

    def name(self, timestamp_id: str) -> None:
        """Let timestamps bear an id from now on."""
        run = self._run = build_timestamp_id(timestamp_id)
        if run is not None:
            clock, make = self.session.new_timestamp, zenoh.Timestamp
            self.new_stamp = lambda: make(clock().get_time_as_ntp64(), run)

    def named(self, stamp: zenoh.Timestamp) -> zenoh.Timestamp:
        """Return a stamp of the same time that bears our id."""
        run = self._run
        return stamp if run is None else zenoh.Timestamp(stamp.get_time_as_ntp64(), run)


def send(outlet: Outlet, sent: Send, key: str | None, stamp: zenoh.Timestamp) -> None:
    """Publish what has a number, with its source and stamp, on one key of a wildcard publisher."""
    info, form, attachment = SourceInfo(outlet.entity, sent.sn), sent.form, sent.attachment
    if key is not None:
        _send_on(outlet, key, sent, stamp, info)
    elif form.kind is not _PUT:
        outlet.delete(attachment=attachment, timestamp=stamp, source_info=info)
    elif form.encoding == outlet.encoding:  # the publisher's own: Zenoh need not read it again
        if attachment is None:  # as every argument, it costs as much as a call of ours
            outlet.put(sent.payload, timestamp=stamp, source_info=info)
        else:
            outlet.put(sent.payload, attachment=attachment, timestamp=stamp, source_info=info)
    else:
        outlet.put(
            sent.payload,
            encoding=form.encoding,
            attachment=attachment,
            timestamp=stamp,
            source_info=info,
        )


def _send_on(
    outlet: Outlet, key: str, sent: Send, stamp: zenoh.Timestamp, info: SourceInfo
) -> None:
    form = sent.form
    qos = Qos.unpack(form.qos)
    if form.kind is _PUT:
        outlet.session.put(
            key,
            sent.payload,
            encoding=form.encoding,
            congestion_control=CONGESTION[qos.congestion],
            priority=PRIORITY[qos.priority],
            express=qos.express,
            attachment=sent.attachment,
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
            attachment=sent.attachment,
            timestamp=stamp,
            allowed_destination=outlet.locality,
            source_info=info,
        )
