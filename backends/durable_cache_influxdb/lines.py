"""How does a sample become a line of line protocol, and rows become a sample again?

Everything of ours in a line is made of letters that neither line protocol nor the CSV of an answer
has to escape: payloads, attachments and keys are base64, the rest are numbers and ids. Only typed
fields and the readable key tag hold text, and neither is ever read back.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from binascii import b2a_base64
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from durable_cache.errors import StorageCorrupt
from durable_cache.model.sample import Kind, Sample, SourceId, Stream, key_bytes
from durable_cache.model.unnumbered import sn_max
from durable_cache_influxdb.options import InfluxDbOptions
from durable_cache_influxdb.slots import Slot

DEFAULT_ENCODING = "zenoh/bytes"
_EMPTY = "="
"""What no bytes are written as: among many strings the server reads an empty one as another's."""
_NO_ENCODING = "%"
_CHUNK_BYTES = 600_000  # 800,000 as base64: below the server's 1 MiB a string, and a multiple of 3
_TAG_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_TAG_ESCAPED = re.compile(r"([, =])")


class Tags(NamedTuple):
    """What the series of one stream have in common."""

    key_id: str
    source_id: str
    epoch: int


def key_id(key: str) -> str:
    """Return 128 bits of a key's hash, in letters that need no escaping anywhere."""
    return urlsafe_b64encode(blake2b(key_bytes(key), digest_size=16).digest())[:-2].decode()


def tags_of(stream: Stream) -> Tags:
    """Return the tags of a stream."""
    return Tags(key_id(stream.key), str(stream.source), stream.epoch)


def series_of(measurement: str, stream: Stream, options: InfluxDbOptions) -> tuple[str, str]:
    """Return a stream's series, before and after the ordinal; tags in order of their names."""
    tags = tags_of(stream)
    readable = ""
    if options.key_tag:
        readable = f",key={_readable(stream.key, options.key_tag_bytes_max)}"
    head = f"{measurement},epoch={tags.epoch}{readable},key_id={tags.key_id},n="
    return head, f",source_id={tags.source_id} "


def _readable(key: str, bytes_max: int) -> str:
    encoded = _TAG_UNSAFE.sub("_", key).encode("utf-8")
    if len(encoded) > bytes_max:
        encoded = encoded[:bytes_max]
    return _TAG_ESCAPED.sub(r"\\\1", encoded.decode("utf-8", "ignore")) or "_"


class Meta(NamedTuple):
    """The packed field `meta`: everything that orders, filters or trims a sample."""

    sn: int
    ntp64: int
    timestamp_id: str
    received_ns: int
    size: int
    """Payload and attachment bytes."""
    kind: int
    qos: int
    stamped: int

    @classmethod
    def parse(cls, text: str) -> Meta:
        """Read the field; StorageCorrupt when it is not ours."""
        try:
            sn, ntp64, tid, received, size, kind, qos, stamped = text.split(" ")
            return cls(
                int(sn),
                int(ntp64),
                tid.rstrip("-"),
                int(received),
                int(size),
                int(kind),
                int(qos),
                int(stamped),
            )
        except ValueError as error:
            raise StorageCorrupt(f"influxdb: a point's meta is {text[:80]!r}") from error


def refusal_of(sample: Sample) -> str | None:
    """Return why a sample can never be stored here, or None."""
    if not 0 <= sample.sn <= sn_max(sample.source):
        return f"sn {sample.sn} is not between 0 and {sn_max(sample.source)}"
    if not -(1 << 63) <= sample.received_ns < 1 << 63:
        return f"received_ns {sample.received_ns} is no 64-bit number"
    if not 0 <= sample.ntp64 < 1 << 64:
        return f"timestamp {sample.ntp64} is no 64-bit number"
    if not -(1 << 63) <= sample.epoch < 1 << 63:
        return f"epoch {sample.epoch} is no 64-bit number"
    return None


def line_of(series: tuple[str, str], sample: Sample, slot: Slot, typed: str) -> str:
    """Return one line without its line end."""
    payload, attachment = sample.payload, sample.attachment
    size = len(payload)
    extra = typed
    if attachment is not None:
        size += len(attachment)
        extra += _chunks("attachment", attachment)
    if sample.encoding != DEFAULT_ENCODING:
        encoded = sample.encoding.encode("utf-8", "surrogatepass")
        extra += f',encoding="{quote(encoded, safe="/;=+.:") or _NO_ENCODING}"'
    if sample.kind is Kind.DELETE:
        extra += ",deleted=true"
    if len(payload) > _CHUNK_BYTES:
        written = _chunks("payload", payload)
    else:
        text = b2a_base64(payload, newline=False).decode() or _EMPTY
        written = f',payload="{text}"'
    return (
        f"{series[0]}{slot.ordinal}{series[1]}"
        f'meta="{sample.sn} {sample.ntp64} {sample.timestamp_id or "-"} {sample.received_ns} {size}'
        f' {sample.kind:d} {sample.qos} {sample.stamped:d}"{written}{extra}'
        f",received={sample.received_ns}i,sn={sample.sn}i {slot.time_ns}"
    )


def _chunks(name: str, data: bytes) -> str:
    parts = []
    for at in range(0, max(1, len(data)), _CHUNK_BYTES):
        number = at // _CHUNK_BYTES or ""
        text = b64encode(data[at : at + _CHUNK_BYTES]).decode() or _EMPTY
        parts.append(f',{name}{number}="{text}"')
    return "".join(parts)


def is_whole(fields: dict[str, str]) -> bool:
    """Tell whether one point's fields are all there."""
    if "meta" not in fields or "payload" not in fields:
        return False
    size = len(_whole("payload", fields))
    if "attachment" in fields:
        size += len(_whole("attachment", fields))
    return size == Meta.parse(fields["meta"]).size


def sample_of(stream: Stream, fields: dict[str, str]) -> Sample:
    """Build the sample of one point's fields, which must be whole."""
    meta = Meta.parse(fields["meta"])
    encoding = fields.get("encoding")
    if encoding == _NO_ENCODING:
        encoding = ""
    attachment = _whole("attachment", fields) if "attachment" in fields else None
    payload = _whole("payload", fields)
    return Sample(
        stream.key,
        stream.source,
        stream.epoch,
        meta.sn,
        payload,
        Kind(meta.kind),
        DEFAULT_ENCODING
        if encoding is None
        else unquote_to_bytes(encoding).decode("utf-8", "surrogatepass"),
        attachment,
        meta.ntp64,
        meta.timestamp_id,
        bool(meta.stamped),
        meta.qos,
        meta.received_ns,
    )


def _whole(name: str, fields: dict[str, str]) -> bytes:
    text = fields[name]
    data = b"" if text == _EMPTY else b64decode(text)
    number = 1
    while (part := fields.get(f"{name}{number}")) is not None:
        data += b64decode(part)
        number += 1
    return data


def stream_line(measurement: str, stream: Stream) -> str:
    """Return the index's line of a stream: it alone holds the exact key."""
    tags = tags_of(stream)
    key = b64encode(key_bytes(stream.key)).decode()
    return (
        f"{measurement},epoch={tags.epoch},key_id={tags.key_id},source_id={tags.source_id} "
        f'key="{key}" 0'
    )


def stream_of(tags: Tags, encoded_key: str) -> Stream:
    """Read a line of the index; StorageCorrupt when key and id do not belong together."""
    key = b64decode(encoded_key).decode("utf-8", "surrogatepass")
    if key_id(key) != tags.key_id:
        raise StorageCorrupt(f"influxdb: key {key[:80]!r} does not have the id {tags.key_id}")
    return Stream(key, SourceId.parse(tags.source_id), tags.epoch)
