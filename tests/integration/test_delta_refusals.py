"""What is refused, with the reason and the remedy, and is left as it was found?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("deltalake")

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from durable_cache.errors import (
    ConfigError,
    SchemaOutdated,
    StorageCorrupt,
    StorageLocked,
    StorageUnavailable,
)
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import batch, run, sample
from durable_cache_delta import DeltaOptions
from durable_cache_delta.maintenance import optimize, status
from durable_cache_delta.schema import SAMPLES
from tests.servers.delta import lake, opened, write

pytestmark = pytest.mark.delta


def samples_table(path: Path) -> DeltaTable:
    return DeltaTable(str(path / "fleet" / "samples"))


def test_another_table_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "fleet" / "samples"
    write_deltalake(str(other), pa.table({"a": [1]}))
    before = sorted(path for path in other.rglob("*"))
    with pytest.raises(ConfigError, match="another Delta table"):
        opened(tmp_path)
    assert sorted(path for path in other.rglob("*")) == before


def test_a_path_within_a_table_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "lake"), pa.table({"a": [1]}))
    with pytest.raises(ConfigError, match="Delta table"):
        opened(tmp_path / "lake")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "fleet").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("found", "remedy"), [("2", "install that version"), ("0", "durable-cache copy")]
)
def test_another_schema_version_is_refused(tmp_path: Path, found: str, remedy: str) -> None:
    write(tmp_path, [sample(1)])
    samples_table(tmp_path).alter.set_table_properties(
        {"durable_cache.schema_version": found}, raise_if_not_exists=False
    )
    with pytest.raises(SchemaOutdated, match=remedy):
        opened(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["delta.appendOnly", "delta.enableDeletionVectors", "delta.enableRowTracking"],
)
def test_settings_that_lock_us_out_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, [sample(1)])
    rewrite_metadata(tmp_path, {name: "true"}, [])
    with pytest.raises(ConfigError, match=name):
        opened(tmp_path)


@pytest.mark.parametrize(
    "feature", ["rowTracking", "clustering", "inCommitTimestamp", "domainMetadata", "typeWidening"]
)
def test_features_that_lock_us_out_are_refused(tmp_path: Path, feature: str) -> None:
    write(tmp_path, [sample(1)])
    rewrite_metadata(tmp_path, {}, [feature])
    with pytest.raises((ConfigError, StorageCorrupt), match=feature):
        opened(tmp_path)


def rewrite_metadata(path: Path, settings: dict[str, str], features: list[str]) -> None:
    """Commit what an engine that has these features would commit."""
    log = path / "fleet" / "samples" / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    metadata = next(action for action in first if "metaData" in action)
    metadata["metaData"]["configuration"].update(settings)
    actions = [metadata]
    if features:
        reader = [name for name in features if name == "typeWidening"]
        protocol: dict[str, object] = {
            "minReaderVersion": 3 if reader else 1,
            "minWriterVersion": 7,
            "writerFeatures": features,
        }
        if reader:
            protocol["readerFeatures"] = reader
        actions.insert(0, {"protocol": protocol})
    last = max(int(file.name[:20]) for file in log.glob("*.json"))
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{last + 1:020}.json").write_text(lines)


def test_a_column_that_somebody_dropped_is_named(tmp_path: Path) -> None:
    schema = SAMPLES.remove(SAMPLES.get_field_index("payload_digest"))
    DeltaTable.create(
        str(tmp_path / "fleet" / "samples"),
        schema,
        partition_by=["day"],
        configuration={"durable_cache.schema_version": "1"},
        raise_if_key_not_exists=False,
    )
    with pytest.raises(ConfigError, match="payload_digest"):
        opened(tmp_path)


def test_a_missing_file_is_named_and_nothing_is_half_read(tmp_path: Path) -> None:
    write(tmp_path, run(0, 9))
    (file,) = (tmp_path / "fleet" / "samples").glob("day=*/*.parquet")
    file.unlink()
    with opened(tmp_path) as storage, pytest.raises(StorageCorrupt, match=file.name):
        read_all(storage)


def test_a_log_that_names_files_outside_is_refused(tmp_path: Path) -> None:
    write(tmp_path, run(0, 9))
    log = tmp_path / "fleet" / "samples" / "_delta_log" / f"{1:020}.json"
    text = log.read_text()
    path = json.loads(next(line for line in text.splitlines() if '"add"' in line))["add"]["path"]
    log.write_text(text.replace(path, "../../../../etc/passwd"))
    (tmp_path / "fleet" / "index.cache").unlink()
    with pytest.raises(StorageCorrupt, match="outside"):
        opened(tmp_path)


def test_a_reader_without_a_storage_is_told_to_wait(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="the writer makes it"):
        opened(tmp_path, writer=False)


def test_operators_tools_do_not_run_beside_a_service(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.append(batch(sample(1)))
        with pytest.raises(StorageLocked, match="process"):
            optimize(lake(tmp_path), "fleet")
        assert status(lake(tmp_path), "fleet").rows == 1


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "path"),
        ({"path": ""}, "name a folder"),
        ({"path": "~/lake"}, "not expanded"),
        ({"path": "ftp://host/lake"}, "no store"),
        ({"path": "lake", "compression": "zstd"}, "compression"),
        ({"path": "lake", "streams_max": 0}, "streams_max"),
        ({"path": "lake", "file_bytes_target": -1}, "file_bytes_target"),
    ],
)
def test_wrong_options_are_named(raw: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(raw, DeltaOptions)
