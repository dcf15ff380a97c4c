"""What the status page looks like: one table and one timeline of gaps, without scripts."""

from __future__ import annotations

import html
import time
from collections.abc import Iterator

from durable_cache.service.report import Event, ServiceReport

__all__ = ["status_page"]

_SHOWN_SECONDS = 3600.0
_WIDTH = 720
_COLUMNS = (
    ("cache", "name"),
    ("stores", "key_exprs"),
    ("level", "level"),
    ("backend", "backend"),
    ("received", "received"),
    ("stored", "appended"),
    ("without a number", "unnumbered"),
    ("ignored", "ignored"),
    ("duplicates", "duplicates"),
    ("refused", "refused"),
    ("missed", "missed"),
    ("gaps open", "gaps_open"),
    ("streams", "streams"),
    ("in journal", "journal_samples"),
)
_STYLE = """
body{font:14px system-ui,sans-serif;margin:2em;color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:left}
.bad{color:#b00020}.strip{background:#d8f0dc}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-color:#444}}
"""


def status_page(report: ServiceReport) -> str:
    """Return the page as HTML; every name in it is escaped."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>durable-cache</title>',
        '<meta http-equiv="refresh" content="5">',
        f"<style>{_STYLE}</style><h1>durable-cache</h1>",
        f"<p>version {_text(report.version)}, domain {_text(report.domain)}, "
        f"zid {_text(report.zid)}, up {report.uptime_seconds:.0f} s, "
        f"keeps its state in {_text(report.state_dir)}</p>",
        "<table><tr>",
        *(f"<th>{title}</th>" for title, _ in _COLUMNS),
        "</tr>",
    ]
    for status in report.storages:
        cells = (_cell(getattr(status, name)) for _, name in _COLUMNS)
        parts.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        if status.last_error:
            error = f'<td colspan="{len(_COLUMNS)}" class="bad">{_text(status.last_error)}</td>'
            parts.append(f"<tr>{error}</tr>")
    parts.append("</table><h2>Gaps in the last hour</h2>")
    now = time.time()
    for status in report.storages:
        events = [event for event in report.events if event.storage == status.name]
        parts.append(f"<p>{_text(status.name)}<br>{_strip(events, now)}</p>")
    parts.append("<p>green: nothing awaited; amber: gaps open; red: samples missed or refused; ")
    parts.append("grey: the backend was away</p></html>")
    return "".join(parts)


def _strip(events: list[Event], now: float) -> str:
    bars = "".join(
        f'<rect x="{left:.1f}" width="{max(1.0, right - left):.1f}" height="16" fill="{colour}"/>'
        for left, right, colour in _bars(events, now)
    )
    size = f'width="{_WIDTH}" height="16"'
    return f'<svg {size} class="strip" role="img" aria-label="gaps over time">{bars}</svg>'


def _bars(events: list[Event], now: float) -> Iterator[tuple[float, float, str]]:
    begin = now - _SHOWN_SECONDS
    scale = _WIDTH / _SHOWN_SECONDS
    for at, event in enumerate(events):
        end = events[at + 1].unix_seconds if at + 1 < len(events) else now
        left = max(0.0, (event.unix_seconds - begin) * scale)
        right = (end - begin) * scale
        before = events[at - 1] if at else None
        lost = before is not None and event[3:5] > before[3:5]
        if lost and right >= 0:
            yield left, left + 2.0, "#b00020"
        if right < 0 or (event.up and not event.gaps_open):
            continue
        yield left, right, "#e0a020" if event.up else "#888"


def _cell(value: object) -> str:
    return _text(", ".join(value) if isinstance(value, tuple) else str(value))


def _text(value: str) -> str:
    return html.escape(value)
