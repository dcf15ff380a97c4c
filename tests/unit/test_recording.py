"""Can what was recorded be read back from an MCAP file, whole and by MCAP's own reader?"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

pytest.importorskip("mcap")

from mcap.reader import make_reader

from durable_cache.errors import DurableCacheError
from durable_cache.model.sample import Kind, Qos, Sample, SourceId
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.model.unnumbered import identified
from durable_cache.service.recording import ATTACHMENT_TOPIC, DELETE_TOPIC, McapFile
from durable_cache.testing.samples import START_NS, run, sample
from durable_cache.testing.strategies import samples as any_samples


def recorded(samples: Iterable[Sample]) -> io.BytesIO:
    """Return a recording of some samples, as a file at its beginning."""
    file = io.BytesIO()
    recording = McapFile(file)
    recording.write([*samples])
    recording.finish()
    file.seek(0)
    return file


def read(file: io.BytesIO) -> list[tuple[Any, Any, Any]]:
    """Return (schema, channel, message) as they lie in the file."""
    reader = make_reader(file, validate_crcs=True)
    return [*reader.iter_messages(log_time_order=False)]


@given(st.lists(any_samples, min_size=1, max_size=5))
def test_a_recording_holds_every_sample_byte_for_byte(published: list[Sample]) -> None:
    messages = iter(read(recorded(published)))
    for one in published:
        schema, channel, message = next(messages)
        deleted = one.kind is Kind.DELETE
        assert channel.topic == (f"{one.key}/{DELETE_TOPIC}" if deleted else one.key)
        assert message.data == one.payload
        assert message.log_time == message.publish_time
        assert message.log_time == (ntp64_to_ns(one.ntp64) or one.received_ns)
        assert message.sequence == (one.sn if one.sn < 1 << 32 else 0)
        qos = Qos.unpack(one.qos)
        assert channel.metadata == {
            "source": str(one.source),
            "epoch": str(one.epoch),
            "encoding": one.encoding,
            "timestamp_id": one.timestamp_id,
            "priority": str(qos.priority),
            "congestion_control": str(qos.congestion),
            "express": "true" if qos.express else "false",
        }
        named = one.encoding.partition(";")[2]
        assert (schema is not None) == (bool(named) and not deleted)
        if one.attachment is not None:
            _, beside, attached = next(messages)
            assert (beside.topic, attached.data) == (
                f"{one.key}/{ATTACHMENT_TOPIC}",
                one.attachment,
            )
            assert (attached.sequence, attached.log_time) == (message.sequence, message.log_time)
    assert next(messages, None) is None


SCHEMA = json.dumps({"title": "Pose", "type": "object"})


@pytest.mark.parametrize(
    ("encoding", "message_encoding", "schema"),
    [
        ("application/json", "json", None),
        ("text/json;fleet.Pose", "json", ("fleet.Pose", "", b"")),
        (f"application/json;{SCHEMA}", "json", ("Pose", "jsonschema", SCHEMA.encode())),
        ("application/json;[1]", "json", ("[1]", "", b"")),
        ("application/cdr;geometry_msgs/msg/Pose", "cdr", ("geometry_msgs/msg/Pose", "", b"")),
        ("application/protobuf;fleet.Pose", "protobuf", ("fleet.Pose", "", b"")),
        ("application/cbor", "cbor", None),
        ("zenoh/bytes", "zenoh/bytes", None),
    ],
)
def test_an_encoding_becomes_mcaps_own_word_for_it(
    encoding: str, message_encoding: str, schema: tuple[str, str, bytes] | None
) -> None:
    twice = [replace(one, encoding=encoding) for one in run(0, 1)]
    (found, channel, _), again = read(recorded(twice))
    assert (channel.message_encoding, channel.schema_id) == (
        message_encoding,
        0 if schema is None else found.id,
    )
    assert again[1].id == channel.id
    if schema is not None:
        assert (found.name, found.encoding, found.data) == schema


def test_a_sample_without_a_number_has_its_time_alone() -> None:
    plain = identified(replace(sample(5), ntp64=START_NS))
    ((_, _, message),) = read(recorded([plain]))
    assert message.sequence == 0
    assert message.publish_time == ntp64_to_ns(plain.ntp64)


def test_another_source_of_a_key_is_another_channel_of_its_topic() -> None:
    other = SourceId("5b", 1)
    written = [sample(0, "a/1"), sample(0, "a/1", other), sample(1, "a/1")]
    summary = make_reader(recorded(written)).get_summary()
    assert summary is not None
    payloads = [found for found in summary.channels.values() if found.topic == "a/1"]
    assert len(payloads) == 2
    assert summary.statistics is not None
    assert summary.statistics.message_count == 3


def test_what_was_written_is_in_the_file_and_not_in_memory() -> None:
    file = io.BytesIO()
    recording = McapFile(file)
    mebibyte = bytes(range(256)) * 4096
    before = 0
    for sn in range(20):
        recording.write([sample(sn, payload=mebibyte)])
        if sn % 5 == 4:
            assert file.tell() > before, "a chunk is written once it has 4 MiB"
            before = file.tell()
    recording.finish()
    file.seek(0)
    summary = make_reader(file).get_summary()
    assert summary is not None
    assert len(summary.chunk_indexes) == 5
    assert {chunk.compression for chunk in summary.chunk_indexes} == {"zstd"}


def test_more_channels_than_mcap_has_numbers_are_an_error() -> None:
    recording = McapFile(io.BytesIO())
    recording.write([sample(0, f"a/{at}") for at in range(65_535)])
    with pytest.raises(DurableCacheError, match=r"room for 65,535 channels.*fewer keys"):
        recording.write([sample(0, "a/one-more")])
