"""Does a window know what came and what is awaited? The model is three sets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.window import Verdict, Window

TOP = 40
SPAN = 10
numbers = st.integers(0, TOP)
spans = st.tuples(numbers, st.integers(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def members(held: RangeSet) -> set[int]:
    return {sn for first, last in held for sn in range(first, last + 1)}


class WindowMachine(RuleBasedStateMachine):
    """Every order of events, without a bound on memory that would forget."""

    @initialize()
    def build(self) -> None:
        self.window = Window(span=SPAN)
        self.held: set[int] = set()
        self.skipped: set[int] = set()
        self.start: int | None = None
        self.expected = -1

    @property
    def top(self) -> int:
        return max(self.held | self.skipped | {self.expected})

    @property
    def awaited(self) -> set[int]:
        if self.start is None:
            return set()
        return set(range(self.start, self.top + 1)) - self.held - self.skipped

    @rule(span=spans)
    def accept(self, span: tuple[int, int]) -> None:
        self.window.accept(*span)
        came = set(range(span[0], span[1] + 1))
        self.held |= came
        self.skipped -= came
        if self.start is None:
            self.start = span[0]

    @rule(span=spans)
    def reject(self, span: tuple[int, int]) -> None:
        self.window.reject(*span)
        self.held -= set(range(span[0], span[1] + 1))
        self.start = span[0] if self.start is None else min(self.start, span[0])
        self.expected = max(self.expected, span[1])

    @rule(span=spans)
    def skip(self, span: tuple[int, int]) -> None:
        self.window.skip(*span)
        self.skipped |= set(range(span[0], span[1] + 1)) - self.held

    @rule(sn=numbers)
    def begin(self, sn: int) -> None:
        self.window.begin(sn)
        self.start = sn if self.start is None else min(self.start, sn)

    @rule(sn=numbers)
    def expect(self, sn: int) -> None:
        self.window.expect(sn)
        self.expected = max(self.expected, sn)

    @invariant()
    def agrees(self) -> None:
        window = self.window
        assert members(window.held) == self.held
        assert members(window.skipped) == self.skipped
        assert members(window.awaited()) == self.awaited
        assert window.top == self.top
        assert window.settled == (min(self.awaited) - 1 if self.awaited else self.top)

    @invariant()
    def judges(self) -> None:
        for sn in range(TOP + SPAN + 8):
            if sn in self.held:
                expected = Verdict.DUPLICATE
            elif self.start is not None and sn > max(self.top, self.start - 1) + SPAN:
                expected = Verdict.BEYOND
            else:
                expected = Verdict.NEW
            assert self.window.verdict(sn) is expected, sn
            run = self.window.run_at(sn)
            assert (run is not None) == (sn in self.held)
            if run is not None:
                assert set(range(run.first, run.last + 1)) <= self.held
                assert not {run.first - 1, run.last + 1} & self.held


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)


@given(st.lists(st.tuples(st.sampled_from(["accept", "skip"]), spans), max_size=60))
def test_forgetting_never_gives_up_what_is_awaited(
    steps: list[tuple[str, tuple[int, int]]],
) -> None:
    small, whole = Window(span=SPAN, runs_max=3), Window(span=SPAN)
    for name, span in steps:
        for window in (small, whole):
            if name == "accept":
                window.accept(*span)
            else:
                window.skip(*span)
        awaited = members(whole.awaited())
        assert awaited <= members(small.awaited()) | set(range(small.base))
        assert not awaited & set(range(small.base)) or min(awaited) >= (small.start or 0)
        for sn in range(TOP + SPAN):
            if whole.verdict(sn) is Verdict.DUPLICATE:
                assert small.verdict(sn) in (Verdict.DUPLICATE, Verdict.OLD)


def test_memory_is_bounded_while_runs_pass_through() -> None:
    window = Window(runs_max=8)
    for sn in range(0, 2_000, 2):
        window.accept(sn, sn)
        window.skip(sn + 1, sn + 1)
        assert len(window.held) <= 8
        assert len(window.skipped) <= 9
    assert window.base > 1_900
    assert window.verdict(0) is Verdict.OLD
    assert window.settled == 1_999


def test_an_awaited_number_is_never_forgotten() -> None:
    window = Window(runs_max=8)
    window.accept(0, 0)
    for sn in range(2, 200, 2):
        window.accept(sn, sn)
    assert members(window.awaited()) == set(range(1, 198, 2))
    assert window.settled == 0


def test_what_did_not_become_durable_is_awaited_again_even_if_it_was_forgotten() -> None:
    window = Window(runs_max=4)
    for sn in range(0, 40, 2):
        window.accept(sn, sn)
        window.skip(sn + 1, sn + 1)
    assert window.base > 10
    window.reject(4, 4)
    assert members(window.awaited()) == {4}
    assert window.settled == 3


def test_the_first_sample_does_not_await_what_was_before() -> None:
    window = Window()
    assert (window.top, window.settled) == (-1, -1)
    assert window.verdict(1 << 34) is Verdict.NEW
    window.accept(1_000, 1_000)
    assert window.settled == 1_000
    assert list(window.awaited()) == []
    window.begin(998)
    assert list(window.awaited()) == [SnRange(998, 999)]
    assert window.settled == 997


def test_the_jump_that_needs_no_confirmation_ends_at_the_span() -> None:
    window = Window(span=5)
    window.accept(0, 10)
    assert [window.verdict(sn) for sn in (11, 15, 16)] == [Verdict.NEW, Verdict.NEW, Verdict.BEYOND]
    window.begin(0)
    empty = Window(span=5)
    empty.begin(100)
    assert [empty.verdict(sn) for sn in (104, 105)] == [Verdict.NEW, Verdict.BEYOND]
