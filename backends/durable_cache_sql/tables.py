"""Which tables hold a storage, the same on SQLite and PostgreSQL.

Keys and encodings are bytes, so that every text Zenoh admits is stored as it is and orders by its
UTF-8 bytes; `head` and `digest` stand in indexes that cannot take 64 KiB. NTP64 timestamps are two
integers. The tables here say what the newest migration makes; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

HEAD_BYTES = 1024
"""How much of a key stands in an index: PostgreSQL takes about 2,700 bytes, keys have 65,536."""

METADATA = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
    }
)
Id = BigInteger().with_variant(Integer, "sqlite")

storages = Table(
    "dc_storages",
    METADATA,
    Column("id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    UniqueConstraint("name"),
)

zids = Table(
    "dc_zids",
    METADATA,
    Column("id", Id, primary_key=True),
    Column("zid", Text, nullable=False),
    Column("number", LargeBinary, nullable=False),  # 16 bytes, so that it orders as a number
    UniqueConstraint("zid"),
)

sources = Table(
    "dc_sources",
    METADATA,
    Column("id", Id, primary_key=True),
    Column("zid_id", Id, ForeignKey("dc_zids.id"), nullable=False),
    Column("eid", BigInteger, nullable=False),
    UniqueConstraint("zid_id", "eid"),
)

encodings = Table(
    "dc_encodings",
    METADATA,
    Column("id", Id, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("encoding", LargeBinary, nullable=False),
    Column("name", Text, nullable=False),
    UniqueConstraint("digest"),
)

keys = Table(
    "dc_keys",
    METADATA,
    Column("id", Id, primary_key=True),
    Column("storage_id", Id, ForeignKey("dc_storages.id"), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("head", LargeBinary, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("name", Text, nullable=False),
    UniqueConstraint("storage_id", "digest"),
    Index("dc_keys_head", "storage_id", "head"),
)

streams = Table(
    "dc_streams",
    METADATA,
    Column("id", Id, primary_key=True),
    Column("storage_id", Id, ForeignKey("dc_storages.id"), nullable=False),
    Column("key_id", Id, ForeignKey("dc_keys.id"), nullable=False),
    Column("source_id", Id, ForeignKey("dc_sources.id"), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    UniqueConstraint("key_id", "source_id", "epoch"),
    Index("dc_streams_source", "storage_id", "source_id", "epoch"),
)

samples = Table(
    "dc_samples",
    METADATA,
    Column("stream_id", Id, primary_key=True, autoincrement=False),
    Column("sn", BigInteger, primary_key=True, autoincrement=False),
    Column("storage_id", Id, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("stamped", Boolean, nullable=False),
    Column("qos", SmallInteger, nullable=False),
    Column("encoding_id", Id, nullable=False),
    Column("stamp_id", Id, nullable=False),
    Column("seconds", BigInteger, nullable=False),
    Column("fraction", BigInteger, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("attachment", LargeBinary),
    Index("dc_samples_time", "storage_id", "seconds", "fraction"),
    Index("dc_samples_stream_time", "stream_id", "seconds", "fraction", "sn"),
)

skips = Table(
    "dc_skips",
    METADATA,
    Column("storage_id", Id, primary_key=True, autoincrement=False),
    Column("source_id", Id, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("first_sn", BigInteger, primary_key=True, autoincrement=False),
    Column("last_sn", BigInteger, nullable=False),
)
