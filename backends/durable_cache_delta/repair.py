"""What did a crash leave of a table's last commit, and how is the table made whole?

Runs when a writer opens a local table, before deltalake looks at it. What was not acknowledged is
taken back (the journal still has it) or made durable; what was is never touched.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from durable_cache.errors import StorageCorrupt
from durable_cache_delta.marker import Marker
from durable_cache_delta.places import LocalPlace, inside, sync_file, sync_folder

_log = logging.getLogger(__name__)
_REMEDY = "restore it from a backup, or empty the folder and let another cache fill it again"


def repair(place: LocalPlace, marker: Marker) -> None:
    """Undo what is torn and confirm what is whole; raises StorageCorrupt for acknowledged damage.

    Idempotent: a crash in the middle is repaired by the next call.
    """
    if not place.log.is_dir():
        return
    _remove_drafts(place)
    _remove_torn_checkpoints(place)
    versions = place.versions()
    if not versions:
        return
    last = versions[-1]
    if marker.version is not None and last < marker.version:
        raise StorageCorrupt(
            f"table {place.uri}: version {marker.version} was acknowledged, but the log ends at "
            f"version {last}; {_REMEDY}"
        )
    if marker.version is not None and last == marker.version:
        if _actions(place, last) is None:
            raise StorageCorrupt(f"table {place.uri}: version {last} is damaged; {_REMEDY}")
        return
    confirmed = -1 if marker.version is None else marker.version
    if marker.version is None and len(versions) > 1:
        confirmed = last - 1  # a lost marker: only the last commit can have been under way
    while last > confirmed and not _is_whole(place, last):
        _take_back(place, last)
        last -= 1
    for version in versions:
        if confirmed < version <= last:
            _make_durable(place, version)
            marker.confirm(version)


def _is_whole(place: LocalPlace, version: int) -> bool:
    actions = _actions(place, version)
    if actions is None:
        return False
    for action in actions:
        added = action.get("add")
        if isinstance(added, dict) and not _is_readable(place, added):
            return False
    return True


def _actions(place: LocalPlace, version: int) -> list[dict[str, object]] | None:
    """Return the actions of a commit, or None when the file is torn."""
    try:
        text = place.version_file(version).read_bytes().decode()
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError):
        return None
    whole = actions and all(isinstance(action, dict) for action in actions)
    return actions if whole else None


def _is_readable(place: LocalPlace, added: dict[str, object]) -> bool:
    file = place.folder / inside(str(added.get("path")))
    try:
        if file.stat().st_size != added.get("size"):
            return False
        with pq.ParquetFile(file, page_checksum_verification=True) as rows:
            for group in range(rows.num_row_groups):
                rows.read_row_group(group)
    except (OSError, pa.ArrowException):
        return False
    return True


def _take_back(place: LocalPlace, version: int) -> None:
    """Remove a commit that nobody was told of; its data files become orphans for vacuum."""
    _log.warning(
        "a torn commit was taken back",
        extra={"table": place.uri, "version": version},
    )
    place.version_file(version).unlink()
    sync_folder(place.log)


def _make_durable(place: LocalPlace, version: int) -> None:
    """Write the commit again: after a failed fsync another one proves nothing."""
    actions = _actions(place, version) or []
    for action in actions:
        added = action.get("add")
        if isinstance(added, dict):
            file = place.folder / inside(str(added.get("path")))
            sync_file(file)
            sync_folder(file.parent)
    sync_folder(place.folder)
    path = place.version_file(version)
    data = path.read_bytes()
    with place.replacing(path) as file_:
        file_.write(data)


def _remove_drafts(place: LocalPlace) -> None:
    for path in place.log.iterdir():
        if "#" in path.name or path.name.endswith(".new"):
            path.unlink(missing_ok=True)


def _remove_torn_checkpoints(place: LocalPlace) -> None:
    """A checkpoint only repeats the log: a torn one may go, and with it the hint that names it."""
    torn = [path for path in place.log.glob("*.checkpoint*.parquet") if not _has_footer(path)]
    hint = place.log / "_last_checkpoint"
    if torn or (hint.exists() and not _is_json(hint)):
        hint.unlink(missing_ok=True)
        for path in torn:
            path.unlink()
        sync_folder(place.log)


def _has_footer(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return False
    return True


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True
