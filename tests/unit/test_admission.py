"""Which samples may come in: within the limit of streams, above the floors, under which epoch?"""

from __future__ import annotations

from collections.abc import Iterable

from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.protocol.cache.admission import Admission, part_at_floors
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias

SOURCE, OTHER = SourceId("ab12", 7), SourceId("cd34", 7)


def given(*streams: tuple[str, int], sns: Iterable[int] = (0,)) -> SampleBatch:
    return SampleBatch(
        Sample(key, SOURCE, epoch, sn, b"") for key, epoch in streams for sn in [*sns]
    )


def keys(batch: SampleBatch) -> list[str]:
    return [sample.key for sample in batch]


def test_without_a_limit_everything_comes_in() -> None:
    batch = given(("a", 1), ("b", 1))
    assert Admission(None).admit(batch) is batch


def test_the_limit_is_the_number_of_streams() -> None:
    admission = Admission(2)
    assert keys(admission.admit(given(("a", 1), ("b", 1), ("c", 1), sns=(0, 1)))) == list("aabb")
    assert keys(admission.admit(given(("b", 1), ("c", 1), ("a", 1)))) == ["b", "a"]


def test_streams_that_are_stored_take_their_places() -> None:
    admission = Admission(2, [Stream("a", SOURCE, 1)])
    assert keys(admission.admit(given(("a", 1), ("b", 1), ("c", 1)))) == ["a", "b"]


def test_live_samples_count_under_the_epoch_they_will_have() -> None:
    admission = Admission(1, [Stream("a", SOURCE, 5)])
    assert keys(admission.admit(given(("a", 0)), lambda source: 5)) == ["a"]
    assert keys(admission.admit(given(("a", 0)), lambda source: 6)) == []


def test_a_stream_that_moved_keeps_its_place_and_no_other() -> None:
    admission = Admission(2)
    admission.admit(given(("a", 1), ("a", 2)))
    assert keys(admission.admit(given(("b", 2)))) == []
    for _ in range(2):
        admission.moved(SOURCE, 1, 2)
    assert keys(admission.admit(given(("a", 2), ("b", 2), ("c", 2)))) == ["a", "b"]


def test_a_run_that_moves_is_found_without_a_look_at_all_others() -> None:
    looks = []

    class Noted(SourceId):
        def __eq__(self, other: object) -> bool:
            looks.append(other)
            return super().__eq__(other)

        __hash__ = SourceId.__hash__

    others = [Stream("k", Noted("cd", 1 + at), 0) for at in range(200)]
    admission = Admission(201, [Stream("a", SOURCE, 0), *others])
    looks.clear()
    admission.moved(SOURCE, 0, 5)
    assert len(looks) < 20
    assert keys(admission.admit(given(("a", 5), ("b", 5)))) == ["a"]


def test_what_was_removed_does_not_come_back() -> None:
    batch = given(("a", 1), ("b", 1), sns=(1, 2, 3))
    left, gone = part_at_floors(batch, {Stream("a", SOURCE, 1): 2, Stream("b", SOURCE, 1): 0})
    assert [(sample.key, sample.sn) for sample in left] == [
        *(("a", 2), ("a", 3)),
        *(("b", 1), ("b", 2), ("b", 3)),
    ]
    assert [(sample.key, sample.sn) for sample in gone] == [("a", 1)]
    left, gone = part_at_floors(batch, {Stream("a", SOURCE, 1): 0})
    assert left is batch
    assert not len(gone)


def test_a_chain_of_aliases_is_followed_to_its_end() -> None:
    epochs = Epochs([Alias(SOURCE, 0, 0, 3), Alias(SOURCE, 3, 0, 7)])
    assert epochs.canonical(SOURCE, 0) == 7
    assert epochs.canonical(SOURCE, 3) == 7
    assert epochs.canonical(OTHER, 0) == 0
    assert sorted(epochs.stored_epochs(SOURCE, 7)) == [0, 3, 7]


def test_a_circle_of_aliases_ends() -> None:
    epochs = Epochs([Alias(SOURCE, 1, 0, 2), Alias(SOURCE, 2, 0, 1)])
    assert epochs.canonical(SOURCE, 1) in (1, 2)


def test_an_alias_counts_from_its_first_number_on() -> None:
    epochs = Epochs([Alias(SOURCE, 0, 10, 3)])
    assert [epochs.canonical(SOURCE, 0, sn) for sn in (9, 10, 11)] == [0, 3, 3]


def test_a_later_alias_stands_in_place_of_the_older() -> None:
    epochs = Epochs([Alias(SOURCE, 0, 0, 3)])
    epochs.learn(Alias(SOURCE, 0, 0, 5))
    assert epochs.canonical(SOURCE, 0) == 5
    epochs.free(SOURCE, 0)
    assert epochs.canonical(SOURCE, 0) == 0


def test_a_batch_is_given_the_epochs_that_stand() -> None:
    epochs = Epochs([Alias(SOURCE, 0, 0, 3)])
    batch = given(("a", 0), ("a", 1))
    assert [sample.epoch for sample in epochs.canonical_batch(batch)] == [3, 1]
    assert Epochs().canonical_batch(batch) is batch
