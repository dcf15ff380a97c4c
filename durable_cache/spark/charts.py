"""How a few numbers become a picture: bars and lines as inline SVG, without any script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from durable_cache.model.payloads import printable

WIDTH, HEIGHT = 760, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 34
LABELS_MAX = 8
ROW_HEIGHT = 24
LABEL_WIDTH = 300


class Point(NamedTuple):
    """One value and what it is of."""

    label: str
    value: float


def lines(points: Sequence[Point], *, low: float | None = None, unit: str = "") -> str:
    """Return a line through the points, in their order; `low` is where its axis begins."""
    floor = min((p.value for p in points), default=0.0) if low is None else low
    top = max((p.value for p in points), default=1.0)
    floor, top, step = _axis(floor, top)
    span = max(1, len(points) - 1)
    places = [
        (LEFT + (WIDTH - LEFT - RIGHT) * (at / span if len(points) > 1 else 0.5), point)
        for at, point in enumerate(points)
    ]
    marks = [(x, _height(point.value, floor, top), point) for x, point in places]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in marks)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{_told(point, unit)}</title></circle>'
        for x, y, point in marks
        if len(marks) <= 400  # more would hide the line and make the file large
    )
    return _frame(
        f'{_grid(floor, top, step, unit)}<polyline points="{path}"/>{dots}{_dates(places)}'
    )


def bars(points: Sequence[Point]) -> str:
    """Return horizontal bars, one row each."""
    full = max((point.value for point in points), default=1.0)
    width = WIDTH - LABEL_WIDTH - 110
    rows = []
    for at, point in enumerate(points):
        y = at * ROW_HEIGHT
        length = 0.0 if full <= 0 else max(1.0, width * min(1.0, point.value / full))
        rows.append(
            f'<text class="name" x="{LABEL_WIDTH - 8}" y="{y + 16}" text-anchor="end">'
            f"{escape(_short(point.label))}<title>{escape(printable(point.label))}</title></text>"
            f'<rect x="{LABEL_WIDTH}" y="{y + 4}" width="{length:.1f}" height="16" rx="2">'
            f"<title>{_told(point)}</title></rect>"
            f'<text x="{LABEL_WIDTH + length + 6:.1f}" y="{y + 16}">'
            f"{_number(point.value)}</text>"
        )
    return _frame("".join(rows), max(1, len(points)) * ROW_HEIGHT)


def _axis(low: float, high: float) -> tuple[float, float, float]:
    """Return round ends and a round step of about a quarter; room where all values are the same."""
    width = (high - low) or abs(low) * 0.01 or 1.0
    power = 10.0 ** math.floor(math.log10(width / 4))
    step = next(power * part for part in (1, 2, 2.5, 5, 10) if width / (power * part) <= 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    return first * step, max(last, first + 1) * step, step


def _height(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)


def _grid(low: float, high: float, step: float, unit: str) -> str:
    parts = []
    for at in range(round((high - low) / step) + 1):
        value = round(low + at * step, 9)
        y = _height(value, low, high)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_number(value)}{escape(unit)}</text>"
        )
    return "".join(parts)


def _dates(places: Sequence[tuple[float, Point]]) -> str:
    step = max(1, -(-len(places) // LABELS_MAX))
    return "".join(
        f'<text x="{min(x, WIDTH - RIGHT - 20):.1f}" y="{HEIGHT - 10}" '
        f'text-anchor="middle">{escape(point.label)}</text>'
        for x, point in places[::step]
    )


def _frame(inner: str, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
        f"{inner}</svg>"
    )


def _told(point: Point, unit: str = "") -> str:
    return f"{escape(printable(point.label))}: {_number(point.value)}{escape(unit)}"


def _number(value: float) -> str:
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _short(label: str, longest: int = 44) -> str:
    told = printable(label)  # keys are data
    return told if len(told) <= longest else f"{told[: longest // 2]}…{told[-longest // 2 + 1 :]}"
