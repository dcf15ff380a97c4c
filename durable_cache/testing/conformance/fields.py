"""Does every field of a sample come back exactly as it went in?"""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Qos, Sample, SourceId
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Storage
from durable_cache.testing.conformance.hooks import StorageHooks, read_all, runs_of
from durable_cache.testing.samples import HOSTILE_KEYS, batch, filled, sample

NTP64S = [0, 1, 2, 0xFFFFFFFF, 1 << 32, (1 << 32) + 1, 0x65A5_A5A5_1234_5677, (1 << 63) - 1]
NTP64S += [1 << 63, (1 << 63) + 1, (1 << 64) - 2, (1 << 64) - 1]
ENCODINGS = ["", "zenoh/bytes", "text/plain;utf-8", "application/json;a;b", "x" * 300, "é;\x00'"]


class FieldTests(StorageHooks):
    """Bytes, text and numbers round trip; nothing is rounded, trimmed or normalised."""

    def _same(self, storage: Storage, samples: list[Sample]) -> None:
        assert storage.append(batch(samples)).new == len(samples)
        found = read_all(storage)
        for got, given in zip(found, sorted(samples, key=lambda s: s.order), strict=True):
            assert msgspec.structs.asdict(got) == msgspec.structs.asdict(given)
            assert type(got.kind) is Kind
            assert type(got.source) is SourceId
            assert type(got.payload) is bytes
            assert type(got.stamped) is bool

    def test_every_field_at_once(self, storage: Storage) -> None:
        self._same(storage, [filled(1), sample(2), filled(3, "suite/b")])

    @pytest.mark.parametrize("size", [0, 1, 255, 65_536, 1 << 20])
    def test_payloads_are_bit_identical(self, storage: Storage, size: int) -> None:
        payload = (bytes(range(256)) * (size // 256 + 1))[:size]
        self._same(storage, [sample(1, payload=payload)])

    def test_payloads_that_look_like_something_else(self, storage: Storage) -> None:
        payloads = [b"\x00", b"\xff\xfe", b"'", b"null", b"1", b"1.0", b"true", b"\\x41", b"\r\n "]
        self._same(storage, [sample(n, payload=p) for n, p in enumerate(payloads)])

    @pytest.mark.parametrize("encoding", ["text/plain", "zenoh/uint64", "zenoh/float64"])
    def test_payloads_that_do_not_fit_their_encoding(self, storage: Storage, encoding: str) -> None:
        payloads = [b"", b"\xff", b"\x00" * 8, b"12", b"nan", b"-1", b" 7", b"1e400"]
        samples = [sample(n, payload=p) for n, p in enumerate(payloads)]
        self._same(storage, [msgspec.structs.replace(s, encoding=encoding) for s in samples])

    def test_no_attachment_is_not_an_empty_one(self, storage: Storage) -> None:
        attachments = [None, b"", b"\x00", b"\xff" * 70_000]
        samples = [
            msgspec.structs.replace(sample(n), attachment=a) for n, a in enumerate(attachments)
        ]
        self._same(storage, samples)

    def test_encodings_keep_their_schema(self, storage: Storage) -> None:
        samples = [msgspec.structs.replace(sample(n), encoding=e) for n, e in enumerate(ENCODINGS)]
        self._same(storage, samples)

    def test_timestamps_are_exact_to_the_last_bit(self, storage: Storage) -> None:
        self._same(storage, [sample(n, ntp64=ntp64) for n, ntp64 in enumerate(NTP64S)])

    def test_timestamps_closer_than_the_backends_step_stay_apart(self, storage: Storage) -> None:
        first = sample(0).ntp64
        self._same(storage, [sample(n, ntp64=first + n // 2) for n in range(40)])

    def test_timestamp_ids_of_every_length(self, storage: Storage) -> None:
        ids = ["", *("f" * digits for digits in range(1, 33)), "8" + "0" * 31, "1"]
        samples = [msgspec.structs.replace(sample(n), timestamp_id=i) for n, i in enumerate(ids)]
        self._same(storage, samples)

    def test_every_qos(self, storage: Storage) -> None:
        every = [
            Qos(priority, congestion, express).pack()
            for priority in range(1, 8)
            for congestion in range(3)
            for express in (False, True)
        ]
        self._same(
            storage, [msgspec.structs.replace(sample(n), qos=q) for n, q in enumerate(every)]
        )

    def test_kind_and_stamped(self, storage: Storage) -> None:
        samples = [
            msgspec.structs.replace(sample(n), kind=kind, stamped=stamped, payload=b"")
            for n, (kind, stamped) in enumerate(
                (kind, stamped) for kind in Kind for stamped in (False, True)
            )
        ]
        self._same(storage, samples)

    def test_received_times(self, storage: Storage) -> None:
        times = [0, 1, 999, 10**9 - 1, 1_790_000_000_123_456_789, (1 << 63) - 1]
        self._same(storage, [sample(n, received_ns=t) for n, t in enumerate(times)])

    def test_sources_of_every_length(self, storage: Storage) -> None:
        sources = [SourceId("f" * digits, 0) for digits in range(1, 33)]
        sources += [SourceId("1", eid) for eid in (1, (1 << 31), (1 << 32) - 1)]
        self._same(storage, [sample(5, source=source) for source in sources])

    def test_hostile_keys_are_data(self, storage: Storage) -> None:
        samples = [sample(1, key, payload=key[:50].encode()) for key in HOSTILE_KEYS]
        assert storage.append(batch(samples)).new == len(samples)
        assert storage.append(batch(samples)).duplicates == len(samples)
        for one in samples:
            assert read_all(storage, Selection(KeyExpression(one.key))) == [one]
        assert [key for key, _, _ in runs_of(storage)] == sorted(HOSTILE_KEYS, key=str.encode)
