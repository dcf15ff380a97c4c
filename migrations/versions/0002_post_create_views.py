"""Create the views for people: samples, latest, streams, gaps."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"

_TIME = {
    "postgresql": "timestamptz 'epoch' + seconds * interval '1 second' "
    "+ (fraction * 1000000 / 4294967296) * interval '1 microsecond'",
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%S', seconds, 'unixepoch') "
    "|| printf('.%09dZ', (fraction * 1000000000) >> 32)",
}
_RECEIVED = {
    "postgresql": "timestamptz 'epoch' + (received_ns / 1000) * interval '1 microsecond'",
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%S', received_ns / 1000000000, 'unixepoch') "
    "|| printf('.%09dZ', received_ns % 1000000000)",
}
_SOURCE = """
  FROM dc_streams st
  JOIN dc_storages s ON s.id = st.storage_id
  JOIN dc_keys k ON k.id = st.key_id
  JOIN dc_sources so ON so.id = st.source_id
  JOIN dc_zids z ON z.id = so.zid_id"""


def upgrade() -> None:
    """Make the views; the service does not use them, so it may run before or after."""
    dialect = op.get_context().dialect.name
    time, received = _TIME[dialect], _RECEIVED[dialect]
    op.execute(
        f"""CREATE VIEW samples AS
SELECT s.name AS storage, k.name AS key, z.zid || ':' || so.eid AS source_id, st.epoch, d.sn,
  CASE d.kind WHEN 0 THEN 'put' ELSE 'delete' END AS kind, {time} AS time,
  tz.zid AS timestamp_id, d.stamped, e.name AS encoding, d.payload, d.attachment,
  d.qos & 7 AS priority, {received} AS received, st.key_id, d.stream_id, d.seconds, d.fraction
{_SOURCE}
  JOIN dc_samples d ON d.stream_id = st.id
  JOIN dc_encodings e ON e.id = d.encoding_id
  JOIN dc_zids tz ON tz.id = d.stamp_id"""
    )
    op.execute(
        """CREATE VIEW latest AS
SELECT n.* FROM dc_keys k JOIN samples n ON n.key_id = k.id
  AND (n.stream_id, n.sn) = (
    SELECT d.stream_id, d.sn FROM dc_streams st JOIN dc_samples d ON d.stream_id = st.id
    WHERE st.key_id = k.id AND (d.stream_id, d.sn) IN (
      SELECT st2.id, (SELECT d2.sn FROM dc_samples d2 WHERE d2.stream_id = st2.id
        ORDER BY d2.seconds DESC, d2.fraction DESC, d2.sn DESC LIMIT 1)
      FROM dc_streams st2 WHERE st2.key_id = k.id)
    ORDER BY d.seconds DESC, d.fraction DESC, d.stream_id DESC, d.sn DESC LIMIT 1)"""
    )
    op.execute(
        f"""CREATE VIEW streams AS
SELECT s.name AS storage, k.name AS key, z.zid || ':' || so.eid AS source_id, st.epoch,
  st.samples, st.bytes,
  (SELECT min(d.sn) FROM dc_samples d WHERE d.stream_id = st.id) AS first_sn,
  (SELECT max(d.sn) FROM dc_samples d WHERE d.stream_id = st.id) AS last_sn
{_SOURCE}
  WHERE st.samples > 0"""  # noqa: S608  # constants of this file
    )
    op.execute(
        """CREATE VIEW gaps AS
SELECT s.name AS storage, z.zid || ':' || so.eid AS source_id, g.epoch,
  g.previous + 1 AS first_sn, g.sn - 1 AS last_sn,
  EXISTS (SELECT 1 FROM dc_skips p WHERE p.storage_id = g.storage_id
    AND p.source_id = g.source_id AND p.epoch = g.epoch
    AND p.first_sn <= g.previous + 1 AND p.last_sn >= g.sn - 1) AS given_up
FROM (
  SELECT st.storage_id, st.source_id, st.epoch, d.sn, lag(d.sn) OVER (
    PARTITION BY st.storage_id, st.source_id, st.epoch ORDER BY d.sn) AS previous
  FROM dc_streams st JOIN dc_samples d ON d.stream_id = st.id) g
JOIN dc_storages s ON s.id = g.storage_id
JOIN dc_sources so ON so.id = g.source_id
JOIN dc_zids z ON z.id = so.zid_id
WHERE g.sn > g.previous + 1"""
    )


def downgrade() -> None:
    """Drop the views."""
    for name in ("gaps", "streams", "latest", "samples"):
        op.execute(f"DROP VIEW {name}")
