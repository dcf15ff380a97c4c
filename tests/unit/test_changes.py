"""Is each change of a service told once, with its end, and nothing told while nothing changes?"""

from __future__ import annotations

from dataclasses import replace

from durable_cache.endpoints.pipe import PipeStatus
from durable_cache.endpoints.status import CacheStatus
from durable_cache.model.delivery import DeliveryRates
from durable_cache.service.changes import Changes, Weight
from durable_cache.service.piping import PipeReport
from durable_cache.storage.contract import Durability

CALM = CacheStatus(
    name="fleet",
    cache_id="c" * 16,
    key_exprs=("fleet/**",),
    level=Durability.DISK,
    backend="sql",
    storage_up=True,
    **dict.fromkeys(
        (
            *("received", "appended", "duplicates", "conflicts", "ignored", "refused", "missed"),
            *("gaps_open", "sources", "streams", "journal_bytes", "journal_samples", "drained"),
            *("dead_letters", "queries_ok", "queries_failed", "acks_sent", "commits"),
        ),
        0,
    ),
    append_seconds=0.0,
    last_error="",
)


class Told:
    """What is said of one report after the other, a second apart."""

    def __init__(self, *connecting: str) -> None:
        self.changes = Changes(connecting)
        self.now = 0.0

    def of(self, status: CacheStatus = CALM, **neighbours: str) -> list[str]:
        self.now += 1
        found = self.changes.of([status], neighbours, self.now)
        return [
            f"{'! ' if change.weight is Weight.WARNING else ''}{change.sentence}: "
            + " ".join(f"{name}={value}" for name, value in change.about.items())
            for change in found
        ]


def test_nothing_is_told_while_samples_come_and_go() -> None:
    told = Told()
    for count in range(5):
        calm = replace(CALM, received=count, appended=count, journal_samples=count, gaps_open=count)
        assert told.of(calm) == []


def test_a_backend_that_goes_and_comes_back_is_told_twice() -> None:
    told = Told()
    away = replace(CALM, storage_up=False, last_error="connection refused")
    assert told.of() == []
    assert told.of(away) == [
        "! the backend is away, samples wait in the journal: storage=fleet backend=sql "
        "reason=connection refused"
    ]
    assert told.of(replace(away, last_error="another word")) == []
    assert told.of(replace(CALM, journal_samples=7)) == [
        "the backend is back: storage=fleet backend=sql seconds_away=2.0 waiting_samples=7"
    ]


def test_a_full_disk_is_told_once_and_its_end() -> None:
    told = Told()
    full = replace(CALM, takes_samples=False, last_error="disk is full", refused=0)
    (line,) = told.of(full)
    assert line.startswith("! samples cannot be made durable and are not acknowledged")
    assert "disk is full" in line
    assert told.of(full) == []
    assert told.of() == ["samples are made durable again: storage=fleet"]


def test_refusals_are_told_at_their_first_and_when_they_have_ended() -> None:
    told = Told()
    (line,) = told.of(replace(CALM, refused=3, findings=("stream 9 is beyond resources_limit",)))
    assert line == (
        "! samples are refused: storage=fleet reason=stream 9 is beyond resources_limit"
    )
    for refused in (10, 20, 20, 21):
        assert told.of(replace(CALM, refused=refused)) == []
    ends = [told.of(replace(CALM, refused=21)) for _ in range(12)]
    assert [line for lines in ends for line in lines] == [
        "no sample is refused any more: storage=fleet refused=21"
    ]
    (again,) = told.of(replace(CALM, refused=22))
    assert again.startswith("! samples are refused")


def test_dead_letters_are_told_when_there_are_more() -> None:
    told = Told()
    (letters,) = told.of(replace(CALM, dead_letters=2))
    assert "dead_letters=2" in letters
    assert told.of(replace(CALM, dead_letters=2)) == []


def test_a_router_that_is_not_there_is_told_of_once() -> None:
    told = Told("tcp/router:7447")
    assert [told.of() for _ in range(20)].count([]) == 19
    assert told.of(CALM, a1="router") == ["a router has come: zid=a1"]
    assert told.of() == ["! a router is gone: zid=a1"]
    late = Told("tcp/router:7447")
    said = [late.of() for _ in range(4)]
    assert said[3] == ["! nobody answers yet; connecting is tried again: connect=tcp/router:7447"]
    linked = Told("tcp/router:7447")
    assert linked.of(CALM, a1="router") == ["a router has come: zid=a1"]
    assert linked.of() == ["! a router is gone: zid=a1"]
    assert not any(linked.of() for _ in range(20)), "that it is gone was told"


def test_sessions_come_and_go_by_name_and_many_by_number() -> None:
    told = Told()
    assert told.of(CALM, a1="router", b2="peer") == [
        "a router has come: zid=a1",
        "a peer has come: zid=b2",
    ]
    assert told.of(CALM, a1="router", b2="peer") == []
    assert told.of(CALM, b2="peer") == ["! a router is gone: zid=a1"]
    assert told.of(CALM, a1="router") == ["a router has come: zid=a1", "a peer is gone: zid=b2"]
    many = {f"c{number}": "peer" for number in range(50)}
    assert told.of(CALM, a1="router", **many) == ["sessions have come: sessions=50"]


def test_a_pipe_is_told_of_when_it_runs_waits_and_is_held_up() -> None:
    changes = Changes()
    status = PipeStatus(
        *(5, 5, 5, 0, 0, 0, 0, 0, 1, 0, "", DeliveryRates(1.0, 1.0), DeliveryRates(1.0, 1.0))
    )
    runs = PipeReport("up", "a/**", "exactly-once", "here -> tcp/hub:7447", True, "", status)
    away = replace(runs, is_running=False, failure="nobody answers")
    stuck = replace(runs, failure="cache x: full", status=status._replace(taken=9))

    def told(pipe: PipeReport, now: float) -> list[str]:
        return [change.sentence for change in changes.of_pipes([pipe], now)]

    waits = "a pipe carries nothing; it is tried again"
    assert told(replace(away, failure="", status=None), 0) == []
    assert told(away, 1) == [waits]
    assert told(away, 2) == []
    assert told(replace(away, failure="no route"), 3) == [waits]
    assert told(runs, 4) == ["a pipe carries"]
    assert told(runs, 5) == []
    assert told(stuck, 6) == [], "a cache may be busy"
    assert told(stuck, 14) == []
    assert told(stuck, 15) == ["a pipe is held up"]
    assert told(stuck, 30) == []
    assert told(runs, 31) == ["a pipe carries again"]
    gave_up = replace(runs, status=status._replace(given_up=2))
    assert told(gave_up, 32) == ["caches will never take some samples of a pipe"]
    assert told(gave_up, 33) == []
    assert told(replace(away, status=status), 34) == [waits]
