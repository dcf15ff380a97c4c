"""Is a Delta table one of ours, and can we write it? If not: what is wrong, and what helps.

Features that would lock deltalake out later are refused when the table is opened, with the reason,
rather than when a batch waits to be stored.
"""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable

from durable_cache.errors import ConfigError, SchemaOutdated
from durable_cache_delta.schema import SCHEMA_VERSION, TABLE_PROPERTY, VERSION_PROPERTY

_HARMLESS = {
    "appendOnly",
    "invariants",
    "checkConstraints",
    "changeDataFeed",
    "generatedColumns",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "deletionVectors",
}
"""Table features that deltalake writes and that change nothing for a reader of our files."""
_REASONS = {
    "typeWidening": "deltalake cannot open such a table",
    "typeWidening-preview": "deltalake cannot open such a table",
    "rowTracking": "deltalake cannot append to such a table",
    "clustering": "deltalake cannot append to a table made with CLUSTER BY",
    "domainMetadata": "it comes with CLUSTER BY or row tracking, which deltalake cannot append to",
    "inCommitTimestamp": "deltalake cannot append to such a table",
    "columnMapping": "the files then no longer hold the documented column names",
}
_FORBIDDEN_SETTINGS = {
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableTypeWidening": "true",
    "delta.enableDeletionVectors": "true",
    "delta.appendOnly": "true",
}
_SETTING_REASONS = {
    "delta.enableDeletionVectors": "rows would be deleted without their files saying so",
    "delta.appendOnly": "retention and purge could remove nothing",
}


def check_table(table: DeltaTable, schema: pa.Schema, kind: str, subject: str) -> None:
    """Raise ConfigError or SchemaOutdated, naming the remedy, unless `table` is ours and usable."""
    configuration: dict[str, str | None] = dict(table.metadata().configuration)
    _check_identity(table, schema, configuration, kind, subject)
    protocol = table.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    for feature in sorted(features - _HARMLESS):
        reason = _REASONS.get(feature, "this version does not know what it means")
        raise ConfigError(
            f"{subject}: the table feature {feature} is on: {reason}; drop it with "
            f"ALTER TABLE … DROP FEATURE {feature}, or let the service begin a new table"
        )
    for name, value in _FORBIDDEN_SETTINGS.items():
        if str(configuration.get(name, "")).lower() == value:
            reason = _SETTING_REASONS.get(name, "deltalake cannot append to such a table")
            raise ConfigError(
                f"{subject}: its property {name} is {value}: {reason}; set it to false with "
                "ALTER TABLE … SET TBLPROPERTIES"
            )
    if "deletionVectors" in features and pa.table(table.deletion_vectors()).num_rows:
        raise ConfigError(
            f"{subject}: rows were deleted with deletion vectors, which direct readers of its "
            "files do not see; run REORG TABLE … APPLY (PURGE)"
        )
    mapping = configuration.get("delta.columnMapping.mode") or "none"
    if mapping != "none":
        raise ConfigError(
            f"{subject}: column mapping is on ({mapping}): {_REASONS['columnMapping']}; "
            "let the service begin a new table"
        )


def _check_identity(
    table: DeltaTable,
    schema: pa.Schema,
    configuration: dict[str, str | None],
    kind: str,
    subject: str,
) -> None:
    found = configuration.get(VERSION_PROPERTY)
    if found is None or configuration.get(TABLE_PROPERTY, kind) != kind:
        raise ConfigError(
            f"{subject}: this is another Delta table, not the {kind} of a storage of ours (its "
            f"property {VERSION_PROPERTY} is missing); choose another path or storage name"
        )
    if found != str(SCHEMA_VERSION):
        newer = found.isascii() and found.isdigit() and int(found) > SCHEMA_VERSION
        remedy = (
            f"{subject} was written by a newer durable-cache: install that version"
            if newer
            else f"copy {subject} into a new storage with: durable-cache copy"
        )
        raise SchemaOutdated(found, str(SCHEMA_VERSION), remedy)
    columns = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
    for field in schema:
        if field.name not in columns:
            raise ConfigError(
                f"{subject}: the column {field.name} is missing; restore the table, or let the "
                "service begin a new one"
            )
        if not _same_type(columns[field.name], field.type):
            raise ConfigError(
                f"{subject}: the column {field.name} is {columns[field.name]}, not {field.type}; "
                "restore the table, or let the service begin a new one"
            )


def _same_type(found: pa.DataType, ours: pa.DataType) -> bool:
    text = str(found)
    plain = text.removeprefix("large_").removesuffix("_view")
    return found == ours or plain == str(ours)
