"""How samples are shown: as aligned lines for people, as JSON or CSV for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from durable_cache.model.sample import Qos, Sample
from durable_cache.model.timestamp import format_ntp64
from durable_cache.service.output import growing_table, write_csv

_PAYLOAD_SHOWN = 60
_TABLE = ("key", "source", "epoch", "sn", "time", "kind", "encoding", "payload")
_CSV = ("key", "source", "epoch", "sn", "time", "kind", "encoding", "payload", "attachment")


class SampleWriter:
    """Writes samples to a text stream as they come; the columns of a table only ever grow."""

    def __init__(self, form: str, to: TextIO | None = None) -> None:
        self._form = form
        self._to = to or sys.stdout
        self._widths: dict[str, int] = {}
        self.written = 0

    def write(self, samples: Sequence[Sample]) -> None:
        """Write some samples, a heading before the first."""
        match self._form:
            case "table":
                for line in growing_table(list(rows_of(samples)), _TABLE, self._widths):
                    print(line, file=self._to)
            case "csv":
                rows = rows_of(samples, short=False)
                write_csv(rows, _CSV, heading=self.written == 0, to=self._to)
            case _:
                for row in rows_of(samples, short=False):
                    print(json.dumps(row, ensure_ascii=False), file=self._to)
        self.written += len(samples)
        self._to.flush()

    def finish(self) -> None:
        """Write nothing more: a text has no end of its own."""


def rows_of(samples: Iterable[Sample], *, short: bool = True) -> Iterator[dict[str, object]]:
    """Yield samples as rows for people (`short`), or whole for programs.

    Bytes that are no UTF-8 text are written as ``hex:`` and their digits.
    """
    for sample in samples:
        sourced = sample.source.eid != 0 or sample.source.zid != "0"
        row: dict[str, object] = {
            "key": sample.key,
            "source": str(sample.source) if sourced else "",
            "epoch": sample.epoch if sourced else "",
            "sn": sample.sn if sourced else "",
            "time": format_ntp64(sample.ntp64) if sample.ntp64 else "",
            "kind": sample.kind.name.lower(),
            "encoding": sample.encoding,
            "payload": _text(sample.payload),
        }
        if short:
            text = str(row["payload"])
            if len(text) > _PAYLOAD_SHOWN:
                row["payload"] = f"{text[:_PAYLOAD_SHOWN]}… ({len(sample.payload)} bytes)"
        else:
            row["attachment"] = None if sample.attachment is None else _text(sample.attachment)
            row["priority"] = Qos.unpack(sample.qos).priority
        yield row


def _text(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return f"hex:{data.hex()}"
    return f"hex:{data.hex()}" if text.startswith("hex:") or "\0" in text else text
