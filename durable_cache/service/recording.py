"""How history is written as a recording: an MCAP file, as Foxglove, Lichtblick and ROS 2 read it.

A topic is a key. Payloads are messages, byte for byte. What a message has no room for is said by
its channel: source, epoch, encoding and QoS; a new value of these is another channel of the topic.
An attachment and a deletion are messages of topics of their own, so that who decodes the messages
of a key meets nothing but payloads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import BinaryIO, NamedTuple

from mcap.writer import CompressionType, Writer

from durable_cache.errors import DurableCacheError
from durable_cache.model.sample import Kind, Qos, Sample, SourceId
from durable_cache.model.timestamp import ntp64_to_ns

ATTACHMENT_TOPIC, DELETE_TOPIC = "@attachment", "@delete"
"""What a key is followed by where its attachments and its deletions are."""
_CHUNK_BYTES = 4 << 20
"""What is in memory and compressed at once."""
_IDS_MAX = (1 << 16) - 1
_SEQUENCE_MAX = (1 << 32) - 1
_MESSAGE_ENCODINGS = {
    "application/json": "json",
    "text/json": "json",
    "application/cdr": "cdr",
    "application/protobuf": "protobuf",
    "application/cbor": "cbor",
}
"""MCAP's own names; any other encoding goes by Zenoh's."""


class _Channel(NamedTuple):
    """What the messages of one channel have in common."""

    topic: str
    message_encoding: str
    schema: str
    metadata: tuple[tuple[str, str], ...]


class McapFile:
    """An MCAP file in chunks, compressed with zstd and indexed.

    Holds one chunk of 4 MiB and, as the format asks, the index of all chunks until its end. At most
    65,535 channels.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._writer = Writer(file, chunk_size=_CHUNK_BYTES, compression=CompressionType.ZSTD)
        self._writer.start(library=f"durable-cache {version('durable-cache')}")
        self._channels: dict[_Channel, int] = {}
        self._schemas: dict[tuple[str, str], int] = {}

    def write(self, samples: Sequence[Sample]) -> None:
        """Write some samples; DurableCacheError where they need more channels than there are."""
        for sample in samples:
            # Not when a cache received it: what was recovered came late and belongs in its place.
            time_ns = ntp64_to_ns(sample.ntp64) or sample.received_ns
            for channel, data in _messages_of(sample):
                self._writer.add_message(
                    self._channels.get(channel) or self._register(channel),
                    log_time=time_ns,
                    publish_time=time_ns,
                    sequence=sample.sn if sample.sn <= _SEQUENCE_MAX else 0,
                    data=data,
                )

    def finish(self) -> None:
        """Write the last chunk and the index."""
        self._writer.finish()  # type: ignore[no-untyped-call]

    def _register(self, channel: _Channel) -> int:
        if len(self._channels) >= _IDS_MAX:
            raise DurableCacheError(
                f"an MCAP file has room for {_IDS_MAX:,} channels, one for each key, source and "
                "encoding; write fewer keys into each file"
            )
        self._channels[channel] = self._writer.register_channel(
            topic=channel.topic,
            message_encoding=channel.message_encoding,
            schema_id=self._schema_id(channel.message_encoding, channel.schema),
            metadata=dict(channel.metadata),
        )
        return self._channels[channel]

    def _schema_id(self, message_encoding: str, schema: str) -> int:
        """Return the schema that an encoding names, 0 for none; of most, the name is all there is.

        JSON whose encoding carries a JSON schema has it in full.
        """
        if not schema:
            return 0
        is_whole = message_encoding == "json" and _is_object(schema)
        name = str(json.loads(schema).get("title", "")) if is_whole else schema
        found = self._schemas.get((message_encoding, schema))
        if found is None:
            found = self._schemas[message_encoding, schema] = self._writer.register_schema(
                name=name,
                encoding="jsonschema" if is_whole else "",
                data=schema.encode() if is_whole else b"",
            )
        return found


def _messages_of(sample: Sample) -> Iterator[tuple[_Channel, bytes]]:
    """Yield a sample's messages: its payload, or that it deletes its key; its attachment."""
    made = _channels_of(
        sample.key, sample.source, sample.epoch, sample.encoding, sample.timestamp_id, sample.qos
    )
    yield made.deletions if sample.kind is Kind.DELETE else made.payloads, sample.payload
    if sample.attachment is not None:
        yield made.attachments, sample.attachment


class _Channels(NamedTuple):
    payloads: _Channel
    deletions: _Channel
    attachments: _Channel


@lru_cache(maxsize=65536)
def _channels_of(
    key: str, source: SourceId, epoch: int, encoding: str, timestamp_id: str, packed_qos: int
) -> _Channels:
    name, _, schema = encoding.partition(";")
    qos = Qos.unpack(packed_qos)
    metadata = (
        ("source", str(source)),
        ("epoch", str(epoch)),
        ("encoding", encoding),
        ("timestamp_id", timestamp_id),
        ("priority", str(qos.priority)),
        ("congestion_control", str(qos.congestion)),
        ("express", str(qos.express).lower()),
    )
    return _Channels(
        _Channel(key, _MESSAGE_ENCODINGS.get(name, name), schema, metadata),
        _Channel(f"{key}/{DELETE_TOPIC}", "", "", metadata),
        _Channel(f"{key}/{ATTACHMENT_TOPIC}", "application/octet-stream", "", metadata),
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
