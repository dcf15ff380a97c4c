"""Create the view `instances`: what each key is, as the samples of its own say it."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"

_TIME = {
    "postgresql": "timestamptz 'epoch' + n.seconds * interval '1 second' "
    "+ (n.fraction * 1000000 / 4294967296) * interval '1 microsecond'",
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%S', n.seconds, 'unixepoch') "
    "|| printf('.%09dZ', (n.fraction * 1000000000) >> 32)",
}
_IN_TIME = (
    "(PARTITION BY st.key_id ORDER BY d.seconds, d.fraction, tz.number, "
    "z.number, so.eid, st.epoch, d.sn)"
)
"""Within a key the one order of samples: `Sample.time_order`."""


def upgrade() -> None:
    """Make the view; the service does not use it, so it may run before or after."""
    time = _TIME[op.get_context().dialect.name]
    op.execute(
        f"""CREATE VIEW instances AS
WITH placed AS (
  SELECT st.storage_id, st.key_id, z.zid || ':' || so.eid AS source_id, st.epoch, d.sn, d.kind,
    d.seconds, d.fraction, d.payload,
    lag(d.kind) OVER {_IN_TIME} AS kind_before, lead(d.kind) OVER {_IN_TIME} AS kind_after
  FROM dc_streams st
  JOIN dc_samples d ON d.stream_id = st.id
  JOIN dc_sources so ON so.id = st.source_id
  JOIN dc_zids z ON z.id = so.zid_id
  JOIN dc_zids tz ON tz.id = d.stamp_id)
SELECT s.name AS storage, k.name AS key,
  CASE n.kind WHEN 0 THEN 'ALIVE' ELSE 'NOT_ALIVE_DISPOSED' END AS state,
  CAST(NULL AS INTEGER) AS writers, lives.disposed, CAST(NULL AS INTEGER) AS no_writers,
  CASE n.kind WHEN 0 THEN 'put' ELSE 'delete' END AS kind, {time} AS time,
  n.source_id, n.epoch, n.sn, n.payload, n.key_id
FROM placed n
JOIN (
  SELECT key_id, count(CASE WHEN kind = 0 AND kind_before <> 0 THEN 1 END) AS disposed
  FROM placed GROUP BY key_id) lives ON lives.key_id = n.key_id
JOIN dc_keys k ON k.id = n.key_id
JOIN dc_storages s ON s.id = n.storage_id
WHERE n.kind_after IS NULL"""  # noqa: S608  # constants of this file
    )


def downgrade() -> None:
    """Drop the view."""
    op.execute("DROP VIEW instances")
