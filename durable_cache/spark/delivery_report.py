"""How well samples were delivered: a page for people and Parquet for programs.

R is what was stored of what was sent, UR what was unique of what came (`views.delivery`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

from durable_cache.spark.charts import Point, bars, lines
from durable_cache.spark.failures import spark_errors
from durable_cache.spark.files import require_absent
from durable_cache.spark.outputs import check_apart, write_frame, write_text
from durable_cache.spark.predicates import named_by
from durable_cache.spark.table import Table, open_table
from durable_cache.spark.views import delivery

DAYS_MAX = 1100
WORST_MAX = 25
_KEY_UNKNOWN = "(key unknown)"


class DeliverySummary(NamedTuple):
    """The totals of a report."""

    sent: int
    received: int
    unique: int
    missing: int

    @property
    def r(self) -> float:
        return self.unique / self.sent if self.sent else 1.0

    @property
    def ur(self) -> float:
        return self.unique / self.received if self.received else 1.0


@dataclass(frozen=True, slots=True)
class _Findings:
    total: DeliverySummary
    days: Sequence[Row]
    worst: Sequence[Row]
    streams: int


def delivery_report(
    spark: SparkSession,
    table: str | Path,
    html: str | Path | None = None,
    parquet: str | Path | None = None,
    key_expr: str = "**",
) -> DeliverySummary:
    """Write R and UR per day, source and key to the file `html` and the new folder `parquet`.

    The page holds at most 1,100 days and the 25 worst pairs of source and key; the Parquet holds
    all. Only those rows come to the driver. Raises what `open_table` and `write_frame` raise.
    """
    found = open_table(spark, table)
    target = None if parquet is None else check_apart(found, parquet)
    if target is not None:
        require_absent(spark, target)
    unknown = fn.col("key_expr").isNull() & fn.lit(key_expr == "**")
    wanted = fn.coalesce(named_by(key_expr), fn.lit(False)) | unknown
    rows = delivery(spark, found).where(wanted).persist()
    try:
        with spark_errors(found.samples_path):
            findings = _findings(rows)
        if target is not None:
            write_frame(spark, rows.coalesce(1), target)
    finally:
        rows.unpersist()
    if html is not None:
        write_text(Path(html), _page(found, key_expr, findings))
    return findings.total


def _findings(rows: DataFrame) -> _Findings:
    names = ("sent", "received", "unique", "missing")
    sums = [fn.coalesce(fn.sum(name), fn.lit(0)).alias(name) for name in names]
    total = rows.agg(*sums).collect()[0]
    days = rows.groupBy("day").agg(*sums).orderBy(fn.desc("day")).limit(DAYS_MAX).collect()
    pairs = rows.groupBy("source", "key_expr").agg(*sums)
    worst = pairs.where("missing > 0").orderBy(fn.desc("missing"), "source", "key_expr")
    return _Findings(
        total=DeliverySummary(*(int(total[name]) for name in names)),
        days=days[::-1],
        worst=worst.limit(WORST_MAX).collect(),
        streams=pairs.where("key_expr is not null").count(),
    )


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5b6b7b; --line: #d9e0e7;
  --mark: #1f6feb; --paper: #ffffff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa7b4; --line: #2f3b47;
  --mark: #58a6ff; --paper: #0d1117; --card: #161b22; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 800px; margin: 32px auto; padding: 0 20px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 36px 0 4px; }
p { color: var(--soft); margin: 0 0 12px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; }
dl div { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 14px; }
dt { color: var(--soft); font-size: 13px; } dd { margin: 0; font-size: 19px; font-weight: 600;
  font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--soft); } svg .name { fill: var(--ink); }
svg line { stroke: var(--line); } svg rect, svg circle { fill: var(--mark); }
svg polyline { fill: none; stroke: var(--mark); stroke-width: 2; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; } .left { text-align: left; overflow-wrap: anywhere; }
"""


def _page(table: Table, key_expr: str, found: _Findings) -> str:
    total = found.total
    cards = (
        ("R, stored of sent", f"{_percent(total.r)}"),
        ("UR, unique of received", f"{_percent(total.ur)}"),
        ("sent", f"{total.sent:,}"),
        ("missing", f"{total.missing:,}"),
        ("sources and keys", f"{found.streams:,}"),
    )
    told = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in cards)
    r_by_day = [Point(str(day["day"]), 100 * _share(day)) for day in found.days]
    lost_by_day = [Point(str(day["day"]), float(day["missing"])) for day in found.days]
    pairs = [
        Point(f"{row['source']} {row['key_expr'] or _KEY_UNKNOWN}", float(row["missing"]))
        for row in found.worst
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Delivery report</title><style>{_STYLE}</style></head><body>"
        f"<h1>Delivery report</h1><p>{escape(table.samples_path)}, keys "
        f"{escape(key_expr)}</p><dl>{told}</dl>"
        "<h2>R by day of receipt</h2>"
        "<p>Stored samples as a share of the numbers known to have been sent.</p>"
        f"{lines(r_by_day, unit='%')}"
        "<h2>Missing samples by day</h2>"
        "<p>Counted on the day of the sample that came after them.</p>"
        f"{lines(lost_by_day, low=0.0)}{_worst(found.worst, pairs)}</body></html>\n"
    )


def _worst(rows: Sequence[Row], pairs: Sequence[Point]) -> str:
    heading = "<h2>Where samples are missing</h2>"
    if not rows:
        return f"{heading}<p>Nothing is missing.</p>"
    cells = "".join(
        f'<tr><td class="left">{escape(row["source"])}</td>'
        f'<td class="left">{escape(row["key_expr"] or _KEY_UNKNOWN)}</td>'
        f"<td>{row['sent']:,}</td><td>{row['missing']:,}</td>"
        f"<td>{_percent(_share(row)) if row['key_expr'] else ''}</td></tr>"
        for row in rows
    )
    return (
        f"{heading}<p>The {len(rows)} pairs of source and key that lack most. A missing number "
        "has a key only where the samples on both sides of it have the same one.</p>"
        f"{bars(pairs)}<h2>The same as a table</h2><table><tr>"
        '<th class="left">source</th><th class="left">key</th><th>sent</th><th>missing</th>'
        f"<th>R</th></tr>{cells}</table>"
    )


def _share(row: Row) -> float:
    return float(row["unique"]) / row["sent"] if row["sent"] else 1.0


def _percent(share: float) -> str:
    """Never round a loss away: 99.9996 % is not 100 %."""
    percent = 100 * share
    return "100\u00a0%" if share == 1.0 else f"{min(percent, 99.9999):.4f}\u00a0%"
