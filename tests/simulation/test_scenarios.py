"""Does each hard case end well, and would a planted bug in its place be noticed?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SampleBatch
from durable_cache.protocol.alignment import (
    AlignerOptions,
    Appended,
    Purged,
    answers,
    flat,
)
from durable_cache.protocol.alignment.choice import Choice
from durable_cache.protocol.alignment.comparison import Comparison
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.peer import KnownDifferences, Peer
from durable_cache.protocol.alignment.pulls import Pulls
from durable_cache.testing.histories import run_history
from durable_cache.testing.simulated_caches import SimulatedCache
from tests.simulation.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_ends_well(scenario: Callable[[], bool]) -> None:
    assert scenario()


def no_quiet_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KnownDifferences, "add", lambda *_: None)


def voids_never_asked_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Choice, "_reask", lambda *_: None)
    patch.setattr(Choice, "_content_due", lambda *_: False)


def no_content_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Choice, "_content_due", lambda *_: False)


def floor_ignored(patch: pytest.MonkeyPatch) -> None:
    """Pull below the own floor, into a storage that does not look at its floors either."""
    honest = Ledger.lacking

    def lacking(ledger: Ledger, entry: Any, lane: Any) -> Any:
        record = ledger.records.get(entry.place)
        if record is None:
            return honest(ledger, entry, lane)
        floor, depth = record.floor, ledger.depth
        record.floor, ledger.depth = 0, None
        try:
            return honest(ledger, entry, lane)
        finally:
            record.floor, ledger.depth = floor, depth

    patch.setattr(Ledger, "lacking", lacking)
    patch.setattr(SimulatedCache, "floor", lambda *_: 0)


def told_before_stored(patch: pytest.MonkeyPatch) -> None:
    """The aligner hears of samples before the storage has taken them, and some it never takes."""
    honest = SimulatedCache.take

    def take(cache: SimulatedCache, batch: SampleBatch) -> None:
        cache.feed(Appended(SampleBatch(s for s in batch if cache.scope.holds(s.key))))
        honest(cache, batch)

    patch.setattr(SimulatedCache, "take", take)


def eight_bits_and_one_salt(patch: pytest.MonkeyPatch) -> None:
    """Sums of few bits under one salt for ever: a hidden difference stays hidden."""
    honest = answers.short_knowledge
    patch.setattr(answers, "short_knowledge", lambda value, _: honest(value, 1) & 3)


def absent_beyond_the_question(patch: pytest.MonkeyPatch) -> None:
    honest = answers.answer_pull

    def answer(*arguments: Any) -> Any:
        read = honest(*arguments)
        return replace(read, absent=tuple((place, (0, 1 << 20)) for place, _ in read.absent))

    patch.setattr(answers, "answer_pull", answer)


def one_absence_is_void(patch: pytest.MonkeyPatch) -> None:
    """What one peer does not retain is called unrecoverable before the others are asked."""
    patch.setattr(Pulls, "seek", lambda pulls, place, runs, _: pulls.add_unrecoverable(place, runs))


def silence_is_absence(patch: pytest.MonkeyPatch) -> None:
    """A peer that does not answer counts as one that has none."""
    honest = Comparison.on_failed

    def on_failed(comparison: Comparison) -> bool:
        for place, runs in list(comparison.pulls.asks.get(comparison.asked_peer, {}).items()):
            comparison.pulls.add_unrecoverable(place, runs.copy())
        return honest(comparison)

    patch.setattr(Comparison, "on_failed", on_failed)


def ranges_end_too_soon(patch: pytest.MonkeyPatch) -> None:
    honest = Comparison._pull

    def pull(comparison: Comparison, items: Any, peer: str) -> Any:
        asks = comparison.pulls.asks[peer]
        for place, runs in items:
            asks[place].remove(runs[-1], runs[-1])
            if not asks[place]:
                del asks[place]
        short = (
            (place, flat(RangeSet([runs[-2:]]).clip(0, runs[-1] - 1))) for place, runs in items
        )
        return honest(comparison, tuple((place, runs) for place, runs in short if runs), peer)

    patch.setattr(Comparison, "_pull", pull)


def conflict_overwritten(patch: pytest.MonkeyPatch) -> None:
    def take(cache: SimulatedCache, batch: SampleBatch) -> None:
        for sample in batch:
            cache.store.setdefault(sample.stream, {})
            cache.keep(sample)
        cache.feed(Appended(batch))

    patch.setattr(SimulatedCache, "take", take)


def purge_not_spread(patch: pytest.MonkeyPatch) -> None:
    honest = SimulatedCache.feed

    def feed(cache: SimulatedCache, event: Any) -> None:
        if not isinstance(event, Purged):
            honest(cache, event)

    patch.setattr(SimulatedCache, "feed", feed)


def settle_ignored(patch: pytest.MonkeyPatch) -> None:
    honest = Ledger.advance
    patch.setattr(
        Ledger, "advance", lambda ledger, unix_ns: honest(ledger, unix_ns + 3_000_000_000)
    )


def late_samples_left_out(patch: pytest.MonkeyPatch) -> None:
    """What comes for a slot that is closed already is left out of the sums."""
    honest = Ledger._update

    def update(ledger: Ledger, record: Any, sns: list[int], terms: Any) -> None:
        late = [at for at, sn in enumerate(sns) if record.runs and sn < record.runs[-1]]
        for at in reversed(late):
            del sns[at], terms[at]
        honest(ledger, record, sns, terms)

    patch.setattr(Ledger, "_update", update)


def pages_without_bounds(patch: pytest.MonkeyPatch) -> None:
    honest = answers.answer_pull
    patch.setattr(answers, "answer_pull", lambda *given: replace(honest(*given), bytes_max=1 << 30))


def other_roots_taken(patch: pytest.MonkeyPatch) -> None:
    """One announcement per peer is kept, whatever view it is of."""
    honest = Peer.announced

    def announced(peer: Peer, root: Any, now_ns: int, options: AlignerOptions) -> None:
        peer.roots.clear()
        honest(peer, root, now_ns, options)

    patch.setattr(Peer, "announced", announced)


def trees_never_rebuilt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "rebuild", lambda *_: None)


def cut_streams_end(patch: pytest.MonkeyPatch) -> None:
    """The rest of a stream with many runs is never asked for."""
    honest = Ledger.entry

    def entry(ledger: Ledger, record: Any, lane: Any, first: int = 0) -> Any:
        found = honest(ledger, record, lane, first)
        if found.next:
            found.first, found.next = max(found.first, 1), 0
        return found

    patch.setattr(Ledger, "entry", entry)


def pulled_once_and_never_again(patch: pytest.MonkeyPatch) -> None:
    """What the door did not let in at once is left alone for good."""
    patch.setattr(Comparison, "_pause_seconds", lambda *_: 1e6)
    patch.setattr("durable_cache.protocol.alignment.comparison._PULLS_AT_ONCE", 1)


def a_forgotten_stream_stays_in_the_tree(patch: pytest.MonkeyPatch) -> None:
    def drop(ledger: Ledger, streams: Any) -> None:
        for stream in streams:
            ledger.records.pop(ledger.place(stream), None)

    patch.setattr(Ledger, "drop", drop)


PLANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (no_quiet_list, "P4"),
    (voids_never_asked_again, "the_longest_comes_back"),
    (no_content_compared, "other_content_is_reported_by_both"),
    (floor_ignored, "P1"),
    (told_before_stored, "P7"),
    (eight_bits_and_one_salt, "P"),
    (absent_beyond_the_question, "P9"),
    (one_absence_is_void, "others_are_asked_before_void"),
    (silence_is_absence, "no_answer_is_no_absence"),
    (ranges_end_too_soon, "a_wiped_cache_is_rebuilt"),
    (conflict_overwritten, "other_content_is_reported_by_both"),
    (purge_not_spread, "a_purge_spreads_and_stays"),
    (settle_ignored, "live_traffic_is_no_difference"),
    (late_samples_left_out, "P7"),
    (pages_without_bounds, "P9"),
    (other_roots_taken, "two_views_are_kept_apart"),
    (trees_never_rebuilt, "a_wrong_sum_heals"),
    (cut_streams_end, "many_runs_are_paged"),
    (pulled_once_and_never_again, "P10"),
    (a_forgotten_stream_stays_in_the_tree, "an_epoch_is_moved_at_both"),
]


@pytest.mark.parametrize(
    ("plant", "noticed_by"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS]
)
def test_a_planted_bug_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], noticed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for scenario in SCENARIOS:
        if scenario.__name__ == noticed_by:
            assert not scenario()
            return
    for seed in range(60):
        if any(wrong.startswith(noticed_by) for wrong in run_history(seed)):
            return
    pytest.fail("60 histories did not notice it")
