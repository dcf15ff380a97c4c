"""Draws what readers with a profile were seen to hold: the timelines of DDS's text, run anew.

``python tools/timelines.py`` runs each of them with real sessions, a link that is cut and heals
among them, writes what was observed to docs/pictures/timelines.json and draws it beside. Nothing is
expected here: after each event the reader's history is read when it has changed, or when a sample
was reported as lost, and what it is then is a row of the picture.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from durable_cache import ReliablePublisher, ReliableReader
from durable_cache import declare_reliable_publisher as declare_publisher
from durable_cache import declare_reliable_subscriber as declare_reader
from durable_cache.endpoints.session import Session, raw_timestamp
from durable_cache.profiles import DestinationOrder, InstanceSample, InstanceState, Profile
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.proxy import TcpProxy

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
RECORD = PICTURES / "timelines.json"
KEY = "fleet/7"
_SECONDS_MAX = 30.0
_NAMES = {InstanceState.NOT_ALIVE_DISPOSED: "D", InstanceState.NOT_ALIVE_NO_WRITERS: "NW"}


class Entry(NamedTuple):
    """One place of a history, as a read returned it."""

    name: str
    """As the text writes it: S(t1), D(t2), NW(t2)."""
    generation: int
    state: str


class Step(NamedTuple):
    """What was seen after an event."""

    event: str
    instance: str
    history: tuple[Entry, ...]
    lost: str
    """Which sample was reported as lost, and why; empty where none was."""


class Timeline(NamedTuple):
    """One run."""

    title: str
    steps: tuple[Step, ...]
    seconds: tuple[float, ...]
    """When each step was seen, after the first event."""


class _Observer:
    """Reads a reader's history whenever it changed, and writes it down."""

    def __init__(self, reader: ReliableReader) -> None:
        self._reader = reader
        self._lost = reader.sample_lost_listener()
        self._before: list[int] = []
        self._raw: list[tuple[str, str, list[InstanceSample], str]] = []
        self._seconds: list[float] = []
        self._began = 0.0

    def after(self, event: str, do: Callable[[], object]) -> None:
        """Let something happen, wait until it shows, and note what is there then."""
        self._began = self._began or time.monotonic()
        do()
        deadline = time.monotonic() + _SECONDS_MAX
        while True:
            found, lost = self._reader.read(), self._lost.try_recv()
            now = [each.ntp64 for each in found]
            if lost is not None or now != self._before:
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"nothing was seen for {_SECONDS_MAX:g} s after: {event}")
            time.sleep(0.005)
        self._before = now
        self._seconds.append(round(time.monotonic() - self._began, 3))
        (instance,) = self._reader.instances()
        state = str(instance.state.name)
        self._raw.append((event, state, found, "" if lost is None else str(lost.reason)))

    def timeline(self, title: str, stamps: Sequence[int] = (), late: str = "") -> Timeline:
        """Return what was noted; `late` names the sample that reports of losses are about.

        `stamps` are the times of samples that are perhaps never seen.
        """
        times = sorted({*stamps, *(each.ntp64 for _, _, found, _ in self._raw for each in found)})
        names = {at: f"t{number}" for number, at in enumerate(times, 1)}
        steps = []
        for event, state, found, lost in self._raw:
            history = tuple(
                Entry(
                    f"{_NAMES[each.message.state] if each.message else 'S'}({names[each.ntp64]})",
                    each.generation_count,
                    str(each.sample_state.name),
                )
                for each in found
            )
            steps.append(Step(event, state, history, f"{late}: {lost}" if lost else ""))
        return Timeline(title, tuple(steps), tuple(self._seconds))


def _publisher(session: Session, reader: ReliableReader, **settings: Any) -> ReliablePublisher[Any]:
    """Declare a publisher that the reader knows of, and that is heard."""
    before = reader.subscription_matched_status().current
    publisher: ReliablePublisher[Any] = declare_publisher(session, KEY, **settings)
    wait_until(lambda: reader.subscription_matched_status().current > before)
    wait_until(lambda: publisher.matched)
    return publisher


def _cut_link(*, disposes: bool) -> Timeline:
    """Cut the link of a publisher that wrote at t1, and heal it."""
    profile = Profile(depth=3, destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP)
    with (
        LocalNetwork() as network,
        TcpProxy(int(network.endpoint.rpartition(":")[2])) as proxy,
        declare_reader(network.client(), KEY, profile=profile) as reader,
    ):
        retry = {"period_init_ms": 50, "period_max_ms": 50}
        ends = {"endpoints": [f"tcp/127.0.0.1:{proxy.port}"], "timeout_ms": -1, "retry": retry}
        session = network.client(connect=ends)
        settings = {"auto_dispose_unregistered_instances": disposes}
        with _publisher(session, reader, **settings) as publisher:
            observer = _Observer(reader)
            observer.after("the publisher writes", lambda: publisher.put(b"S"))
            observer.after("its link is cut", proxy.cut)
            observer.after("the link heals", proxy.heal)
        says = "disposes" if disposes else "does not dispose"
        return observer.timeline(f"A publisher that {says} what it leaves, depth 3")


def _late(title: str, *, depth: int, take: bool = False) -> Timeline:
    """Let a sample of t1 come after another publisher's of t2."""
    profile = Profile(depth=depth, destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP)
    with (
        LocalNetwork() as network,
        declare_reader(network.client(), KEY, profile=profile) as reader,
    ):
        sessions = [network.client(), network.client()]
        stamps = [sessions[0].new_timestamp() for _ in range(2)]
        observer = _Observer(reader)
        with _publisher(sessions[0], reader) as early, _publisher(sessions[1], reader) as late:
            observer.after(
                "S(t2) of one publisher comes", lambda: late.put(b"2", timestamp=stamps[1])
            )
            if take:
                observer.after("the program takes it", reader.take)
            observer.after("S(t1) of another comes", lambda: early.put(b"1", timestamp=stamps[0]))
        times = [raw_timestamp(stamp)[0] for stamp in stamps]
        return observer.timeline(title, times, late="S(t1)")


def observe() -> Iterator[tuple[str, Timeline]]:
    """Run every timeline; yields the picture that each belongs to."""
    yield "cut-link", _cut_link(disposes=True)
    yield "cut-link", _cut_link(disposes=False)
    yield "late-samples", _late("A late sample, depth 2", depth=2)
    yield "late-samples", _late("A late sample, depth 1", depth=1)
    yield (
        "late-samples",
        _late("A late sample, depth 2, and the newer one was taken", depth=2, take=True),
    )


def load(path: Path = RECORD) -> dict[str, list[Timeline]]:
    """Return the record: the timelines of each picture."""
    found: dict[str, list[Timeline]] = {}
    for name, timelines in json.loads(path.read_text(encoding="utf-8")).items():
        for title, steps, seconds in timelines:
            read = (
                Step(event, instance, tuple(Entry(*entry) for entry in history), lost)
                for event, instance, history, lost in steps
            )
            found.setdefault(name, []).append(Timeline(title, tuple(read), tuple(seconds)))
    return found


_COLOURS = {"S": "#d5e8d4", "D": "#f8cecc", "NW": "#ffe6cc"}
_ROW, _BOX, _GAP, _LEFT, _WIDTH = 0.62, 1.55, 0.12, 2.8, 9.6


def draw(timelines: Sequence[Timeline], path: Path) -> None:
    """Draw timelines below each other: a row for each event, the oldest entry at the left."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "timelines", "font.size": 9})
    rows = sum(len(timeline.steps) + 1 for timeline in timelines)
    figure = Figure(figsize=(_WIDTH, rows * _ROW + 0.2), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(-rows * _ROW - 0.1, 0.1)
    top = 0.0
    for timeline in timelines:
        axes.text(0.15, top - 0.42, timeline.title, weight="bold", size=10)
        top -= _ROW
        for step, seconds in zip(timeline.steps, timeline.seconds, strict=True):
            _draw_step(axes, step, seconds, top)
            top -= _ROW
    figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_step(axes: Any, step: Step, seconds: float, top: float) -> None:
    from matplotlib.patches import Rectangle

    axes.text(0.15, top - 0.26, step.event)
    axes.text(0.15, top - 0.47, f"seen after {seconds * 1000:.0f} ms", size=7, color="#555555")
    left = _LEFT
    for name, generation, state in step.history:
        colour = _COLOURS[name.partition("(")[0]]
        corner = (left, top - _ROW + _GAP)
        axes.add_patch(Rectangle(corner, _BOX, _ROW - _GAP, facecolor=colour, edgecolor="#555555"))
        axes.text(left + _BOX / 2, top - 0.24, name, ha="center", weight="bold")
        about = f"{state.lower().replace('_', ' ')}, generation {generation}"
        axes.text(left + _BOX / 2, top - 0.43, about, ha="center", size=6.5, color="#333333")
        left += _BOX + _GAP
    if not step.history:
        axes.text(left, top - 0.34, "(empty)", color="#555555")
        left += _BOX + _GAP
    if step.lost:
        axes.text(left, top - 0.34, f"lost {step.lost}", color="#b00020", weight="bold", size=8)
    axes.text(_WIDTH - 0.15, top - 0.34, step.instance, ha="right", size=7.5, color="#333333")


def main(arguments: Sequence[str]) -> int:
    """Observe, write the record, draw it; with ``--draw`` draw the record there is."""
    if "--draw" not in arguments:
        found: dict[str, list[Timeline]] = {}
        for name, timeline in observe():
            found.setdefault(name, []).append(timeline)
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    pictures: Mapping[str, Sequence[Timeline]] = load()
    for name, timelines in pictures.items():
        draw(timelines, PICTURES / f"{name}.svg")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
