"""How a file of zenohd with storages of its storage manager becomes one of ours.

What has no counterpart is named with what to do about it; no secret gets into what is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from durable_cache.errors import ConfigError
from durable_cache.service.layers import LISTEN_DEFAULT
from durable_cache.service.masking import mask
from durable_cache.service.sections import SECTION
from durable_cache.service.strict import read_table

_MANAGER = "plugins.storage_manager"
_MAIN = "main"
"""The volume of all storages whose backend has no counterpart but a disk."""
_LOCAL = frozenset({"rocksdb", "fs", "filesystem"})
_STORAGE_NAMES = frozenset({"key_expr", "volume", "strip_prefix"})
_WITHOUT_COUNTERPART = {
    "complete": "has no effect here; every cache answers beside the others",
    "garbage_collection": "is not needed here; retention decides what is kept",
    "replica_config": "became alignment; its times are settings of `alignment`",
    "replication": "became alignment; its times are settings of `alignment`",
}
_LOADING = ("plugins_loading", "plugins_search_dirs")


@dataclass(slots=True)
class Translation:
    """A configuration of ours, what changes with it, and which storages it lacks."""

    document: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """One line each: the setting of zenohd's file, and what became of it or what to do."""
    storages: dict[str, object] = field(default_factory=dict)
    """The storages within `document`; without any it is no file to serve."""
    left_out: list[str] = field(default_factory=list)
    """As the notes, for storages that nothing here stands for."""


def translate_zenohd(document: Mapping[str, object]) -> Translation:
    """Return what a file of zenohd means here; the result has yet to be checked.

    Raises `ConfigError` where the file names no storages of zenohd's, or is none of zenohd's.
    """
    plugins = read_table(document.get("plugins", {}), "plugins")
    if "durable_cache" in plugins:
        raise ConfigError(f"{SECTION}: the file is one for durable-cache already")
    manager = read_table(plugins.get("storage_manager", {}), _MANAGER)
    raw = read_table(manager.get("storages", {}), f"{_MANAGER}.storages")
    if not raw:
        raise ConfigError(f"{_MANAGER}.storages: no storage to translate; is it zenohd's file?")
    made = Translation()
    _take_zenohs(made, document)
    for name in plugins:
        if name == "rest":
            made.notes.append(
                "plugins.rest: left out; `serve --rest-http-port` does it, on 127.0.0.1 unless said"
            )
        elif name != "storage_manager":
            made.notes.append(f"plugins.{name}: left out; run `zenohd -e ENDPOINT` with it beside")
    volumes: dict[str, object] = {}
    configured = read_table(manager.get("volumes", {}), f"{_MANAGER}.volumes")
    for name, value in raw.items():
        table = read_table(value, f"{_MANAGER}.storages.{name}")
        storage = _storage(made, name, table, configured, volumes)
        if storage is not None:
            made.storages[_our_name(made, name)] = storage
    ours = {"volumes": volumes} if volumes else {}
    made.document["plugins"] = {"durable_cache": {**ours, "storages": made.storages}}
    if made.storages:
        made.notes.append(
            f"{_MANAGER}: zenohd keeps the newest value of a key, hence retention.samples_max: 1; "
            "raise it or leave it out to keep a history. Values in zenohd's own storages stay "
            "there: publish them again"
        )
    return made


def _take_zenohs(made: Translation, document: Mapping[str, object]) -> None:
    """Take over Zenoh's own settings, with the defaults that only zenohd has; no secrets."""
    for name, value in document.items():
        if name in _LOADING:
            made.notes.append(f"{name}: left out; plugins are not loaded here")
        elif name != "plugins":
            shown = made.document[name] = mask(value, name)
            made.notes += [
                f"{where}: a secret, not printed; write it into the new file by hand"
                for where in _differing(value, shown, name)
            ]
    for name, default in (("mode", "router"), ("listen", {"endpoints": [LISTEN_DEFAULT]})):
        if name not in document:
            made.document[name] = default
            made.notes.append(f"{name}: named, for it is zenohd's default and not ours")


def _differing(value: object, shown: object, where: str) -> Iterator[str]:
    if isinstance(value, Mapping) and isinstance(shown, Mapping):
        for name, inner in value.items():
            yield from _differing(inner, shown[name], f"{where}.{name}")
    elif isinstance(value, list) and isinstance(shown, list):
        for at, inner in enumerate(value):
            yield from _differing(inner, shown[at], f"{where}[{at}]")
    elif value != shown:
        yield where


def _storage(
    made: Translation,
    name: str,
    table: Mapping[str, object],
    configured: Mapping[str, object],
    volumes: dict[str, object],
) -> dict[str, object] | None:
    """Return a storage of ours, its volume put into `volumes`; None where there is none."""
    where = f"{_MANAGER}.storages.{name}"
    if not isinstance(table.get("key_expr"), str):
        raise ConfigError(f"{where}.key_expr: expected a key expression")
    given = table.get("volume")
    volume = {"id": given} if isinstance(given, str) else read_table(given, f"{where}.volume")
    volume_id = str(volume.get("id", ""))
    settings = read_table(configured.get(volume_id, {}), f"{_MANAGER}.volumes.{volume_id}")
    chosen = _volume(made, where, volume_id, {**settings, **volume}, volumes)
    if chosen is None:
        return None
    storage: dict[str, object] = {"key_expr": table["key_expr"], "volume": chosen}
    storage |= {"retention": {"samples_max": 1}, "unnumbered": "store"}
    if chosen == "memory":
        storage["acknowledge"] = "memory"
    if {"replication", "replica_config"} & set(table):
        storage["alignment"] = {"enabled": True}
    if "strip_prefix" in table:
        made.notes.append(f"{where}.strip_prefix: left out; keys are stored whole")
    for setting in table:
        if setting not in _STORAGE_NAMES:
            became = _WITHOUT_COUNTERPART.get(setting, "left out; it has no counterpart here")
            made.notes.append(f"{where}.{setting}: {became}")
    return storage


def _volume(
    made: Translation,
    where: str,
    volume_id: str,
    options: Mapping[str, object],
    volumes: dict[str, object],
) -> str | None:
    """Return the name of our volume for one of zenohd's; None where no backend stands for it."""
    backend = str(options.get("backend", volume_id))
    if backend == "memory":
        return "memory"
    if backend in _LOCAL:
        volumes[_MAIN] = {"backend": "sql", "url": "sqlite:///durable-cache-data/samples.db"}
        made.notes.append(f"{where}.volume: {backend} became SQLite, in durable-cache-data")
        return _MAIN
    if backend == "influxdb2":
        found = _influxdb(made, volume_id, options)
    elif backend == "s3":
        found = _delta(made, where, options)
    else:
        remedy = (
            "InfluxDB 1 is not written here; move to influxdb2, or give the storage another volume"
            if backend == "influxdb"
            else "no backend here stands for it; `durable-cache backends` lists those there are"
        )
        made.left_out.append(f"{where}: left out; its volume is {backend!r}: {remedy}")
        return None
    base = _plain(volume_id)
    name, at = base, 2
    while volumes.setdefault(name, found) != found:
        name, at = f"{base}-{at}", at + 1
    return name


def _influxdb(
    made: Translation, volume_id: str, options: Mapping[str, object]
) -> dict[str, object]:
    private = read_table(options.get("private", {}), f"{_MANAGER}.volumes.{volume_id}.private")
    variable = f"{re.sub('[^A-Z0-9]', '_', volume_id.upper())}_TOKEN"
    made.notes.append(f"{_MANAGER}.volumes.{volume_id}: put its token into {variable}")
    found: dict[str, object] = {"backend": "influxdb", "token": {"env": variable}}
    given = {"url": options.get("url"), "org": private.get("org_id")}
    found |= {name: value for name, value in given.items() if isinstance(value, str)}
    found["bucket"] = str(options.get("db", "durable-cache"))
    found["create_bucket"] = options.get("create_db") is True
    return found


def _delta(made: Translation, where: str, options: Mapping[str, object]) -> dict[str, object]:
    bucket = options.get("bucket")
    if not isinstance(bucket, str) or not bucket:
        raise ConfigError(f"{where}.volume.bucket: expected the name of a bucket")
    given = {"AWS_ENDPOINT_URL": options.get("url"), "AWS_REGION": options.get("region")}
    store = {name: value for name, value in given.items() if isinstance(value, str) and value}
    if store.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        store["AWS_ALLOW_HTTP"] = "true"
    made.notes.append(
        f"{where}.volume: s3 became Delta Lake in the bucket; put the access key into "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )
    return {"backend": "delta", "path": f"s3://{bucket}/durable-cache", "storage_options": store}


def _plain(name: str) -> str:
    """Return a name as ours are: a letter, then a-z 0-9 _ -."""
    plain = re.sub(r"[^a-z0-9_-]", "-", name.lower())[:60]
    return plain if re.match(r"[a-z]", plain) else f"s{plain}"


def _our_name(made: Translation, name: str) -> str:
    """Return the storage's name here, unlike all others."""
    base = "storage-lock" if name == "lock" else _plain(name)
    chosen, at = base, 2
    while chosen in made.storages:
        chosen, at = f"{base}-{at}", at + 1
    if chosen != name:
        made.notes.append(f"{_MANAGER}.storages.{name}: is called {chosen!r} here")
    return chosen
