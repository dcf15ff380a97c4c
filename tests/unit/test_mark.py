"""What a mark says after whatever happened to its file: the truth, an older truth, or nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.storage.journaled.mark import DamagedMark, Mark, Note, make_mark, read_mark

NAME = "0123456789abcdef"
lasts = st.lists(st.integers(0, 2**63), min_size=1, max_size=6)


def written(path: Path, *last_ids: int) -> bytes:
    """Make a mark, note these, and return the file as a SIGKILL leaves it."""
    make_mark(path, NAME, 0)
    mark = Mark(path, read_mark(path) or Note(0, NAME, 0))
    for last_id in last_ids:
        mark.reached(last_id)
    data = path.read_bytes()
    mark.close()
    mark.close()
    assert path.read_bytes() == data
    return data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.mark"


def test_where_there_is_no_mark_nothing_is_said(path: Path) -> None:
    assert read_mark(path) is None


def test_a_new_mark_says_what_it_was_made_with_and_leaves_nothing_beside(path: Path) -> None:
    make_mark(path, NAME, 7)
    note = read_mark(path)
    assert note is not None
    assert note[1:] == (NAME, 7)
    assert os.listdir(path.parent) == [path.name]


@given(lasts)
def test_the_last_note_counts_also_where_a_mark_is_gone_on_with(last_ids: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mark"
        make_mark(path, NAME, 0)
        for last_id in last_ids:
            mark = Mark(path, read_mark(path) or Note(0, NAME, 0))
            mark.reached(last_id)
            note = read_mark(path)
            assert note is not None
            assert note[1:] == (NAME, last_id)
            mark.close()


@given(lasts, st.data())
def test_a_note_that_was_written_in_part_leaves_the_one_before(
    last_ids: list[int], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mark"
        before, after = written(path, *last_ids[:-1]), written(path, *last_ids)
        changed = [at for at in range(len(after)) if before[at] != after[at]]
        some = data.draw(st.sets(st.sampled_from(changed))) if changed else set()
        path.write_bytes(bytes(after[at] if at in some else before[at] for at in range(len(after))))
        note = read_mark(path)
        assert note is not None
        assert note.last_id in [*last_ids[-2:], 0]


@given(lasts, st.integers(0, 8191), st.integers(0, 7))
def test_a_flipped_bit_never_says_more_than_was_noted(
    last_ids: list[int], at: int, bit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mark"
        data = bytearray(written(path, *sorted(last_ids)))
        data[at] ^= 1 << bit
        path.write_bytes(data)
        note = read_mark(path)
        assert note is not None
        assert note.name == NAME
        assert note.last_id in [0, *last_ids]


@pytest.mark.parametrize("size", [0, 1, 4096, 8191, 8193])
def test_a_mark_of_another_size_is_damaged(path: Path, size: int) -> None:
    path.write_bytes((written(path, 1, 2, 3) * 2)[:size])
    with pytest.raises(DamagedMark):
        read_mark(path)


def test_a_mark_of_which_no_note_is_whole_is_damaged(path: Path) -> None:
    path.write_bytes(bytes(8192))
    with pytest.raises(DamagedMark):
        read_mark(path)
