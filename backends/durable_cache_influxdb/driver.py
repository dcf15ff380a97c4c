"""The few calls of influxdb-client that we make, with types: the driver has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, cast

from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.domain.bucket_retention_rules import BucketRetentionRules
from influxdb_client.domain.delete_predicate_request import DeletePredicateRequest
from influxdb_client.domain.dialect import Dialect
from influxdb_client.service.delete_service import DeleteService
from influxdb_client.service.write_service import WriteService

from durable_cache_influxdb.options import InfluxDbOptions

_Make = Callable[..., object]


class Response(Protocol):
    """An answer that is still being received."""

    def stream(self, amt: int, decode_content: bool) -> Iterator[bytes]:
        """Yield its body in pieces."""

    def close(self) -> None:
        """Give it up, with its connection."""

    def release_conn(self) -> None:
        """Give the connection back after the end."""


class _Writes(Protocol):
    def post_write(self, org: str, bucket: str, body: bytes, **settings: str) -> object: ...


class _Deletes(Protocol):
    def post_delete(self, delete_predicate_request: object, *, org: str, bucket: str) -> object: ...


class _Queries(Protocol):
    def query_raw(self, query: str, org: str, dialect: object) -> Response: ...


class _Buckets(Protocol):
    def find_bucket_by_name(self, bucket_name: str) -> object: ...
    def create_bucket(self, *, bucket_name: str, org: str, retention_rules: object) -> object: ...


class _Client(Protocol):
    api_client: object

    def close(self) -> None: ...
    def query_api(self) -> _Queries: ...
    def buckets_api(self) -> _Buckets: ...


class Driver:
    """One client with the driver's own retries off; raises the driver's errors."""

    def __init__(self, options: InfluxDbOptions) -> None:
        self._org, self._bucket = options.org, options.bucket
        timeout_ms = (
            round(options.connect_timeout_seconds * 1000),
            round(options.request_timeout_seconds * 1000),
        )
        self._client = cast(
            _Client,
            cast(_Make, InfluxDBClient)(
                url=options.where(),
                token=options.read_token(),
                org=options.org,
                timeout=timeout_ms,
                enable_gzip=False,  # writes are compressed by us, at a cheaper level
                connection_pool_maxsize=8,
                retries=False,
            ),
        )
        self._writes = cast(_Writes, cast(_Make, WriteService)(self._client.api_client))
        self._deletes = cast(_Deletes, cast(_Make, DeleteService)(self._client.api_client))
        self._dialect = cast(_Make, Dialect)(header=True, delimiter=",", annotations=[])

    def write(self, body: bytes, encoding: str) -> None:
        """Post line protocol in nanoseconds; `encoding` is ``gzip`` or ``identity``."""
        self._writes.post_write(
            self._org,
            self._bucket,
            body,
            precision="ns",
            content_encoding=encoding,
            content_type="text/plain; charset=utf-8",
        )

    def query(self, text: str) -> Response:
        """Post a Flux query; the answer is CSV without annotations."""
        return self._client.query_api().query_raw(text, self._org, self._dialect)

    def delete(self, predicate: str, start: str, stop: str) -> None:
        """Post a deletion between two RFC 3339 times, both included."""
        request = cast(_Make, DeletePredicateRequest)(start=start, stop=stop, predicate=predicate)
        self._deletes.post_delete(request, org=self._org, bucket=self._bucket)

    def has_bucket(self) -> bool:
        """Tell whether the bucket exists and the token may see it."""
        return self._client.buckets_api().find_bucket_by_name(self._bucket) is not None

    def create_bucket(self, shard_group_seconds: int) -> None:
        """Create the bucket, kept for ever."""
        rule = cast(_Make, BucketRetentionRules)(
            type="expire", every_seconds=0, shard_group_duration_seconds=shard_group_seconds
        )
        self._client.buckets_api().create_bucket(
            bucket_name=self._bucket, org=self._org, retention_rules=rule
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
