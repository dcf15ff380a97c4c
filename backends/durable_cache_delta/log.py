"""What is a Delta table's log to us: checked when opened, one commit at a time, durable on return.

Owns the deltalake handle of one table. The caller holds the storage's lock while it commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    PostCommitHookProperties,
    RemoveAction,
    Transaction,
)

from durable_cache.errors import Closed, StorageLocked, StorageUnavailable
from durable_cache_delta.checks import check_table
from durable_cache_delta.errors import translated
from durable_cache_delta.failpoints import reached
from durable_cache_delta.marker import Marker
from durable_cache_delta.places import LocalPlace, Place
from durable_cache_delta.schema import (
    PARTITION,
    REQUIRED_CONFIGURATION,
    SCHEMA_VERSION,
    TABLE_PROPERTY,
    VERSION_PROPERTY,
)

VERSION = str(SCHEMA_VERSION)
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Added(NamedTuple):
    """A live file, as the log describes it."""

    path: str
    size: int
    day: str | None


class TableLog:
    """The log of one table; a writer has a marker on local places."""

    def __init__(
        self, place: Place, schema: pa.Schema, kind: str, storage: str, marker: Marker | None
    ) -> None:
        self.place = place
        self.subject = f"table {place.uri}"
        self._schema = schema
        self._kind = kind
        self._app = f"durable-cache/{storage}/{kind}"
        self._marker = marker
        self._partition = [PARTITION] if PARTITION in schema.names else None
        self._table: DeltaTable | None = None
        self._app_version = 0
        self.version = -1

    def open(self, *, create: bool) -> None:
        """Load the table, making it first when it is missing and `create` says so."""
        with translated(self.subject):
            try:
                table = DeltaTable(self.place.uri, storage_options=self._options)
            except TableNotFoundError as error:
                if not create:
                    raise StorageUnavailable(
                        f"{self.subject}: there is none yet; the writer makes it"
                    ) from error
                table = self._create()
            self._adopt(table)

    @property
    def _options(self) -> dict[str, str] | None:
        return dict(self.place.storage_options) or None

    def _create(self) -> DeltaTable:
        table = DeltaTable.create(
            self.place.uri,
            Schema.from_arrow(self._schema),
            partition_by=self._partition,
            configuration=self._configuration(),
            storage_options=self._options,
            raise_if_key_not_exists=False,
        )
        self._confirm(0)
        return table

    def _configuration(self) -> dict[str, str | None]:
        settings = REQUIRED_CONFIGURATION if self._partition else {VERSION_PROPERTY: VERSION}
        return {**settings, TABLE_PROPERTY: self._kind}

    def _adopt(self, table: DeltaTable) -> None:
        check_table(table, self._schema, self._kind, self.subject)
        self._table = table
        self.version = table.version()
        self._app_version = table.transaction_version(self._app) or 0

    @property
    def table(self) -> DeltaTable:
        if self._table is None:
            raise Closed(f"{self.subject} is closed")
        return self._table

    @property
    def table_id(self) -> str:
        return str(self.table.metadata().id)

    def moved(self) -> bool:
        """Tell whether somebody committed since; StorageCorrupt when the log is lost."""
        with translated(self.subject):
            return self.place.moved(self.version)

    def refresh(self) -> None:
        """Load what others committed and check that the table is still one of ours."""
        with translated(self.subject):
            self._adopt(DeltaTable(self.place.uri, storage_options=self._options))

    def files(self) -> Iterator[Added]:
        """Yield the live files."""
        with translated(self.subject):
            rows: Any = pa.table(self.table.get_add_actions(flatten=True))
            days = (
                rows.column(f"partition.{PARTITION}").to_pylist()
                if self._partition and rows.num_rows
                else [None] * rows.num_rows
            )
            paths, sizes = rows.column("path").to_pylist(), rows.column("size_bytes").to_pylist()
        for path, size, day in zip(paths, sizes, days, strict=True):
            yield Added(path, size, None if day is None else day.isoformat())

    def commit(
        self, added: Sequence[AddAction], removed: Sequence[Added] = (), *, new: bool = True
    ) -> None:
        """Commit files as one version; durable on return.

        `new` False says that the rows are those of the files removed. Raises StorageUnavailable
        when the outcome is unknown, StorageLocked when another service commits to the table.
        """
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            *added,
            *(
                RemoveAction(
                    file.path,
                    data_change=new,
                    deletion_timestamp=now,
                    size=file.size,
                    partition_values=None if file.day is None else {PARTITION: file.day},
                )
                for file in removed
            ),
        ]
        expected = self.version + 1
        with translated(self.subject):
            reached("before commit")
            try:
                self._write(actions)
            except CommitFailedError as error:
                raise self._refused(error) from error
            reached("after commit")
            self.place.sync_version(expected)
            reached("commit synced")
            self._confirm(expected)
            reached("confirmed")
            self.table.update_incremental()
            if self.table.version() != expected:
                raise StorageUnavailable(f"{self.subject}: somebody else commits to it; try again")
            self.version = expected
            self._app_version += 1

    def _write(self, actions: list[AddAction | RemoveAction]) -> None:
        self.table.create_write_transaction(
            actions,
            "append",
            Schema.from_arrow(self._schema),
            self._partition,
            commit_properties=CommitProperties(
                custom_metadata=None,
                max_commit_retries=0,
                app_transactions=[Transaction(self._app, self._app_version + 1)],
            ),
            post_commithook_properties=_NO_HOOKS,
        )

    def _refused(self, error: CommitFailedError) -> StorageUnavailable | StorageLocked:
        text = " ".join(str(error).split())
        if "oncurrent transaction" in text:
            return StorageLocked(
                f"{self.subject}: another service writes this storage; stop one of the two "
                f"({text[:200]})"
            )
        return StorageUnavailable(f"{self.subject}: the commit did not go in: {text[:300]}")

    def _confirm(self, version: int) -> None:
        if self._marker is None or not isinstance(self.place, LocalPlace):
            return
        if version == 0:
            self.place.sync_version(0)
        self._marker.confirm(version)

    def acknowledge(self) -> None:
        """Record that what others committed is part of what we rely on."""
        if self._marker is not None and self._marker.version != self.version:
            with translated(self.subject):
                self.place.sync_version(self.version)
                self._marker.confirm(self.version)

    def close(self) -> None:
        """Let go of the handle and the marker; idempotent."""
        self._table = None
        if self._marker is not None:
            self._marker.close()
