"""Create the tables of storages, keys, sources, streams, samples and skips."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make every table; runs before the first version of the service."""
    _dictionaries()
    _streams()
    _samples()


def _dictionaries() -> None:
    op.create_table(
        "dc_storages",
        sa.Column("id", Id, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="dc_storages_pkey"),
        sa.UniqueConstraint("name", name="dc_storages_name_key"),
    )
    op.create_table(
        "dc_zids",
        sa.Column("id", Id, nullable=False),
        sa.Column("zid", sa.Text, nullable=False),
        sa.Column("number", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="dc_zids_pkey"),
        sa.UniqueConstraint("zid", name="dc_zids_zid_key"),
    )
    op.create_table(
        "dc_sources",
        sa.Column("id", Id, nullable=False),
        sa.Column("zid_id", Id, nullable=False),
        sa.Column("eid", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="dc_sources_pkey"),
        sa.ForeignKeyConstraint(["zid_id"], ["dc_zids.id"], name="dc_sources_zid_id_fkey"),
        sa.UniqueConstraint("zid_id", "eid", name="dc_sources_zid_id_eid_key"),
    )
    op.create_table(
        "dc_encodings",
        sa.Column("id", Id, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("encoding", sa.LargeBinary, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="dc_encodings_pkey"),
        sa.UniqueConstraint("digest", name="dc_encodings_digest_key"),
    )


def _streams() -> None:
    op.create_table(
        "dc_keys",
        sa.Column("id", Id, nullable=False),
        sa.Column("storage_id", Id, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("head", sa.LargeBinary, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="dc_keys_pkey"),
        sa.ForeignKeyConstraint(["storage_id"], ["dc_storages.id"], name="dc_keys_storage_id_fkey"),
        sa.UniqueConstraint("storage_id", "digest", name="dc_keys_storage_id_digest_key"),
    )
    op.create_index("dc_keys_head", "dc_keys", ["storage_id", "head"])
    op.create_table(
        "dc_streams",
        sa.Column("id", Id, nullable=False),
        sa.Column("storage_id", Id, nullable=False),
        sa.Column("key_id", Id, nullable=False),
        sa.Column("source_id", Id, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="dc_streams_pkey"),
        sa.ForeignKeyConstraint(
            ["storage_id"], ["dc_storages.id"], name="dc_streams_storage_id_fkey"
        ),
        sa.ForeignKeyConstraint(["key_id"], ["dc_keys.id"], name="dc_streams_key_id_fkey"),
        sa.ForeignKeyConstraint(["source_id"], ["dc_sources.id"], name="dc_streams_source_id_fkey"),
        sa.UniqueConstraint(
            "key_id", "source_id", "epoch", name="dc_streams_key_id_source_id_epoch_key"
        ),
    )
    op.create_index("dc_streams_source", "dc_streams", ["storage_id", "source_id", "epoch"])
    op.create_table(
        "dc_skips",
        sa.Column("storage_id", Id, nullable=False),
        sa.Column("source_id", Id, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("first_sn", sa.BigInteger, nullable=False),
        sa.Column("last_sn", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "storage_id", "source_id", "epoch", "first_sn", name="dc_skips_pkey"
        ),
    )


def _samples() -> None:
    op.create_table(
        "dc_samples",
        sa.Column("stream_id", Id, autoincrement=False, nullable=False),
        sa.Column("sn", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("storage_id", Id, nullable=False),
        sa.Column("kind", sa.SmallInteger, nullable=False),
        sa.Column("stamped", sa.Boolean, nullable=False),
        sa.Column("qos", sa.SmallInteger, nullable=False),
        sa.Column("encoding_id", Id, nullable=False),
        sa.Column("stamp_id", Id, nullable=False),
        sa.Column("seconds", sa.BigInteger, nullable=False),
        sa.Column("fraction", sa.BigInteger, nullable=False),
        sa.Column("received_ns", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("attachment", sa.LargeBinary, nullable=True),
        sa.PrimaryKeyConstraint("stream_id", "sn", name="dc_samples_pkey"),
    )
    op.create_index("dc_samples_time", "dc_samples", ["storage_id", "seconds", "fraction"])
    op.create_index(
        "dc_samples_stream_time", "dc_samples", ["stream_id", "seconds", "fraction", "sn"]
    )


def downgrade() -> None:
    """Drop every table and what is in it."""
    for name in ("samples", "skips", "streams", "keys", "encodings", "sources", "zids", "storages"):
        op.drop_table(f"dc_{name}")
