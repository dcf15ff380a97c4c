"""How is a storage on an InfluxDB 2 server opened?"""

from __future__ import annotations

import re
from typing import ClassVar

from durable_cache.errors import ConfigError
from durable_cache.storage.contract import Backend, BackendOptions, Storage
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.flux import Source, literal
from durable_cache_influxdb.index import Measurements
from durable_cache_influxdb.lease import WriterLease
from durable_cache_influxdb.options import InfluxDbOptions
from durable_cache_influxdb.storage import InfluxDbStorage

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class InfluxDbBackend(Backend[InfluxDbOptions]):
    """Opens storages that are one measurement each in a bucket they may share."""

    name: ClassVar[str] = "influxdb"
    options_type: ClassVar[type[BackendOptions]] = InfluxDbOptions

    def open(self, storage: str, options: InfluxDbOptions, *, writer: bool = True) -> Storage:
        if not _NAME.fullmatch(storage):
            raise ConfigError(
                f"storage name {storage!r}: write 1 to 64 of a-z 0-9 _ -, a letter first"
            )
        options.check()
        where = Measurements.of(options.bucket, storage)
        client = Client(options)
        lease: WriterLease | None = None
        try:
            there = client.ensure_bucket(create=writer and options.create_bucket)
            if not there:
                raise ConfigError(
                    f"{client.subject}: no such bucket; create it, or open a writer with"
                    " create_bucket"
                )
            known: set[str] = set()
            if writer:
                lease = WriterLease(client, where.leases, options)
                lease.acquire()
                known = _field_names(client, where.samples, options)
            return InfluxDbStorage(client, where, options, lease, known)
        except BaseException:
            if lease is not None:
                lease.release()
            client.close()
            raise

    def describe(self, options: InfluxDbOptions) -> str:
        return f"InfluxDB {options.where()}, organisation {options.org}, bucket {options.bucket}"


def _field_names(client: Client, source: Source, options: InfluxDbOptions) -> set[str]:
    """Return the typed fields that a storage has already, so that their bound outlives us."""
    if not options.typed_fields:
        return set()
    query = (
        'import "influxdata/influxdb/schema"\n'
        f"schema.measurementFieldKeys(bucket: {literal(source.bucket)},"
        f" measurement: {literal(source.measurement)}, start: time(v: 0))"
    )
    prefixes = tuple(options.field_prefix + kind for kind in ("value", "flag", "text"))
    return {name for (name,) in client.rows([query], ("_value",)) if name.startswith(prefixes)}
