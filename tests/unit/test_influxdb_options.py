"""Does each bound of an InfluxDB storage do what its description says? Without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("influxdb_client")

from influxdb_client.client.exceptions import InfluxDBError

from durable_cache.testing.samples import sample
from durable_cache_influxdb import InfluxDbOptions
from durable_cache_influxdb.errors import InfluxBusy, translated
from durable_cache_influxdb.line_writer import DeadLetters, _chunks
from durable_cache_influxdb.lines import series_of
from durable_cache_influxdb.typed_fields import TypedFields


class Busy(InfluxDBError):
    """What the driver raises for a 503 with a Retry-After."""

    def __init__(self, retry_after: str | None) -> None:
        super().__init__(message="busy")
        self.status = 503
        self.retry_after = retry_after


@pytest.mark.parametrize(("asked", "pause"), [("3600", 5.0), ("2", 2.0), (None, 1.0)])
def test_a_busy_server_s_pause_is_bounded(asked: str | None, pause: float) -> None:
    options = InfluxDbOptions(retry_after_seconds_max=5.0)
    error = translated(Busy(asked), "influxdb", options.retry_after_seconds_max)
    assert isinstance(error, InfluxBusy)
    assert error.retry_after_seconds == pause


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (InfluxDbOptions(batch_bytes_max=30), [2, 2, 1]),
        (InfluxDbOptions(batch_bytes_max=5), [1, 1, 1, 1, 1]),  # a larger line goes alone
        (InfluxDbOptions(batch_lines_max=3), [3, 2]),
        (InfluxDbOptions(), [5]),
    ],
)
def test_a_request_has_the_bytes_and_lines_allowed(
    options: InfluxDbOptions, sizes: list[int]
) -> None:
    length: Callable[[str], int] = len
    assert [len(chunk) for chunk in _chunks(["x" * 10] * 5, length, options)] == sizes


def test_a_long_key_is_cut_in_the_tag_alone() -> None:
    stream = replace(sample(0), key="k" * 100).stream
    whole = "".join(series_of("m", stream, InfluxDbOptions()))
    cut = "".join(series_of("m", stream, InfluxDbOptions(key_tag_bytes_max=10)))
    assert f"key={'k' * 100}" in whole
    assert "k" * 11 not in cut
    assert f"key={'k' * 5}" in cut


def test_typed_fields_can_be_left_out() -> None:
    number = replace(sample(0), payload=b"1.5", encoding="text/plain")
    assert TypedFields(InfluxDbOptions(), set()).text(number)
    assert TypedFields(InfluxDbOptions(typed_fields=False), set()).text(number) == ""


def test_refused_lines_are_kept_up_to_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "letters"
    letters = DeadLetters(InfluxDbOptions(dead_letter=str(file), dead_letter_bytes_max=100))
    for number in range(5):
        letters.add(f"line {number}", "no reason")
    kept = [json.loads(line)["line"] for line in file.read_text().splitlines()]
    assert kept == ["line 0", "line 1"]
    assert letters.count == 5
