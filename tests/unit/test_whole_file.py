"""Does a file stand under its name whole, or as it was before?"""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_cache.service.whole_file import writing_whole


def test_the_name_holds_what_was_before_until_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"before")
    with writing_whole(path, 0o600) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_leaves_what_was_before(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"before")

    def stopped() -> None:
        with writing_whole(path) as file:
            file.write(b"after")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), writing_whole(tmp_path / "nowhere" / "file"):
        pass
