"""What each view of ``top`` shows: its columns, its rows, and where one goes from a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, cast

from durable_cache.service.output import cell_text
from durable_cache.service.top.reach import Row

_VALUE_CELLS_MAX = 60


class View(Enum):
    """What is listed."""

    STORAGES = "storages"
    KEYS = "keys"
    SOURCES = "sources"
    SAMPLES = "samples"
    SAMPLE = "sample"
    PEERS = "peers"


class Column(NamedTuple):
    """One column: its heading, and the name of its figure in a row."""

    title: str
    name: str
    form: str = ""
    """``bytes`` writes KiB and so on."""


COLUMNS: Mapping[View, tuple[Column, ...]] = {
    View.STORAGES: (
        Column("storage", "name"),
        Column("stored/s", "stored_per_second"),
        Column("up", "storage_up"),
        Column("gaps", "gaps_open"),
        Column("missed", "missed"),
        Column("refused", "refused"),
        Column("ignored", "ignored"),
        Column("journal", "journal_bytes", "bytes"),
        Column("of", "journal_bytes_max", "bytes"),
        Column("waiting", "journal_samples"),
        Column("disk free", "disk_free_bytes", "bytes"),
        Column("level", "level"),
        Column("backend", "backend"),
        Column("stored", "appended"),
        Column("received/s", "received_per_second"),
        Column("unnumbered", "unnumbered"),
        Column("streams", "streams"),
        Column("peers", "peers"),
        Column("lag s", "lag_seconds"),
        Column("service", "service"),
        Column("trouble", "last_error"),
    ),
    View.KEYS: (
        Column("key", "key"),
        Column("samples/s", "per_second"),
        Column("samples", "samples"),
        Column("value", "value"),
        Column("newest", "newest"),
        Column("streams", "streams"),
        Column("bytes", "bytes", "bytes"),
        Column("encoding", "encoding"),
        Column("trouble", "error"),
    ),
    View.SOURCES: (
        Column("source", "source"),
        Column("samples/s", "per_second"),
        Column("samples", "samples"),
        Column("missing", "missing"),
        Column("given up", "given_up"),
        Column("missing numbers", "missing_runs"),
        Column("given up numbers", "given_up_runs"),
        Column("last", "last"),
        Column("newest", "newest"),
        Column("epoch", "epoch"),
    ),
    View.SAMPLES: (
        Column("time", "time"),
        Column("sn", "sn"),
        Column("kind", "kind"),
        Column("value", "value"),
        Column("bytes", "bytes", "bytes"),
        Column("encoding", "encoding"),
        Column("source", "source"),
        Column("epoch", "epoch"),
    ),
    View.PEERS: (
        Column("peer", "peer"),
        Column("live", "live"),
        Column("equal", "equal"),
        Column("lag s", "lag_seconds"),
        Column("streams", "streams"),
        Column("streams there", "streams_there"),
        Column("samples", "samples"),
        Column("samples there", "samples_there"),
        Column("missing here", "missing"),
        Column("pulled", "pulled"),
        Column("conflicts", "conflicts"),
        Column("refused", "refused"),
    ),
}
_KEYS = {
    View.STORAGES: ("zid", "name"),
    View.KEYS: ("key",),
    View.SOURCES: ("source", "epoch"),
    View.SAMPLES: ("source", "epoch", "sn", "time"),
    View.PEERS: ("peer",),
}


@dataclass(slots=True)
class Level:
    """Where one is: a view and what it is of; the pages behind it for the way back."""

    view: View
    zid: str = ""
    storage: str = ""
    key: str = ""
    source: str = ""
    key_expr: str = ""
    pages: list[str] = field(default_factory=lambda: [""])
    """The places where the pages begin that were seen, this one's last."""
    sort: str = ""
    reverse: bool = True
    sample: Row | None = None

    @property
    def title(self) -> str:
        """Say where one is."""
        parts = [self.view.value]
        if self.storage:
            parts.append(f"of {self.storage}")
        if self.key or self.source:
            parts.append(" ".join(part for part in (cell_text(self.key), self.source) if part))
        if self.key_expr:
            parts.append(f"in {cell_text(self.key_expr)}")
        if len(self.pages) > 1:
            parts.append(f"page {len(self.pages)}")
        return ", ".join(parts)

    def parameters(self, rows_max: int) -> dict[str, str]:
        """Return what a service is asked with."""
        asked = {
            "limit": str(rows_max),
            "after": self.pages[-1],
            "key": self.key,
            "source": self.source,
            "key_expr": self.key_expr,
        }
        return {name: text for name, text in asked.items() if text}

    def below(self, row: Row) -> Level | None:
        """Return where Enter on a row leads; None where nothing is below it."""
        match self.view:
            case View.STORAGES:
                return Level(View.KEYS, str(row["zid"]), str(row["name"]))
            case View.KEYS:
                return Level(
                    View.SAMPLES, self.zid, self.storage, key=str(row["key"]), source=self.source
                )
            case View.SOURCES:
                view = View.SAMPLES if self.key else View.KEYS
                source = str(row["source"])
                return Level(view, self.zid, self.storage, key=self.key, source=source)
            case View.SAMPLES:
                return Level(View.SAMPLE, self.zid, self.storage, key=self.key, sample=row)
            case View.SAMPLE | View.PEERS:
                return None

    def beside(self, view: View, row: Row | None) -> Level | None:
        """Return the sources or the peers of what is selected."""
        if self.view is View.STORAGES:
            return None if row is None else Level(view, str(row["zid"]), str(row["name"]))
        key = str(row["key"]) if self.view is View.KEYS and row is not None else self.key
        return Level(view, self.zid, self.storage, key=key if view is View.SOURCES else "")


def storage_rows(
    reports: Sequence[Row], before: Mapping[tuple[str, str], Row], seconds: float
) -> list[Row]:
    """Return a row for each storage, its rates since the look before; no rates at the first."""
    rows: list[Row] = []
    for report in reports:
        for status in cast("Sequence[Row]", report["storages"]):
            earlier = before.get((str(report["zid"]), str(status["name"])))
            alignment = cast("Row", status["alignment"])
            lags = cast("Sequence[tuple[str, float]]", alignment["lags"])
            rows.append(
                {
                    **status,
                    "zid": report["zid"],
                    "service": str(report["zid"])[:8],
                    "disk_free_bytes": report.get("disk_free_bytes", -1),
                    "stored_per_second": _rate(status, earlier, "appended", seconds),
                    "received_per_second": _rate(status, earlier, "received", seconds),
                    "peers": len(lags),
                    "lag_seconds": max((lag for _, lag in lags), default=0.0),
                }
            )
    return rows


def _rate(now: Row, before: Row | None, name: str, seconds: float) -> float | None:
    if before is None or seconds <= 0:
        return None
    grown = float(str(now[name])) - float(str(before[name]))
    return round(max(0.0, grown) / seconds, 1)


def row_key(view: View, row: Row) -> str:
    """Return what names a row from one refresh to the next."""
    return "\0".join(str(row.get(name)) for name in _KEYS[view])


def sort_rows(rows: Sequence[Row], name: str, *, reverse: bool) -> list[Row]:
    """Return rows by one column; what has no figure comes last."""
    if not name:
        return list(rows)
    known = [row for row in rows if row.get(name) not in (None, "")]
    known.sort(key=lambda row: _sorted_by(row[name]), reverse=reverse)
    return known + [row for row in rows if row.get(name) in (None, "")]


def _sorted_by(value: object) -> tuple[float, str]:
    if isinstance(value, int | float):
        return float(value), ""
    return 0.0, str(value)


def cell(row: Row, column: Column) -> str:
    """Return what stands in one cell."""
    value = row.get(column.name)
    if value is None:
        return ""
    if column.form == "bytes" and isinstance(value, int):
        return _bytes(value)
    text = cell_text(value)
    if column.name == "samples" and row.get("at_least") is True:
        text += "+"
    return text if len(text) <= _VALUE_CELLS_MAX else text[: _VALUE_CELLS_MAX - 1] + "…"


def _bytes(count: int) -> str:
    if count < 0:
        return ""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
