"""How the samples of one publisher of ours leave: stamped, with their source and number.

What is the same for all of them is read once: each word with Zenoh costs as much as a put decides.
"""

from __future__ import annotations

import zenoh
from zenoh import Publisher, Session, SourceInfo

from durable_cache.endpoints.session.arguments import CONGESTION, PRIORITY, Origins
from durable_cache.endpoints.session.decoding import new_timestamp, raw_timestamp
from durable_cache.model.sample import Kind, Qos
from durable_cache.protocol.publisher.events import Send

_PUT = Kind.PUT


class Outlet:
    """A publisher on its session; `encoding` is the one that it was declared with."""

    __slots__ = (
        "delete",
        "encoding",
        "entity",
        "locality",
        "new_stamp",
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
        self.new_stamp = session.new_timestamp
        self.zid = raw_timestamp(new_timestamp(session))[1]
        """The id of the session's clock, which all its stamps bear."""


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
