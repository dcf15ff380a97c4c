"""Let the view `latest` decide between equal timestamps as every reader does (ADR 0096)."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"

_TIME = (
    "timestamptz 'epoch' + d.seconds * interval '1 second' "
    "+ (d.fraction * 1000000 / 4294967296) * interval '1 microsecond'"
)
_RECEIVED = "timestamptz 'epoch' + (d.received_ns / 1000) * interval '1 microsecond'"
_LAST_IN_ORDER = (
    "ORDER BY c.seconds DESC, c.fraction DESC, ctz.number DESC, "
    "cz.number DESC, cso.eid DESC, cst.epoch DESC, c.sn DESC LIMIT 1"
)
"""Within a key the one order of samples: `Sample.time_order`."""
_NAMES = """
    JOIN dc_sources cso ON cso.id = cst.source_id
    JOIN dc_zids cz ON cz.id = cso.zid_id
    JOIN dc_zids ctz ON ctz.id = c.stamp_id"""


def upgrade() -> None:
    """Make the view anew, with the same columns: of each stream its last time, of these the last.

    The last time of a stream is found by index; PostgreSQL needs LATERAL to see that.
    """
    if op.get_context().dialect.name == "postgresql":
        op.execute(_postgresql())
    else:
        op.execute("DROP VIEW latest")
        op.execute(_sqlite())


def _postgresql() -> str:
    return f"""CREATE OR REPLACE VIEW latest AS
SELECT s.name AS storage, k.name AS key, z.zid || ':' || so.eid AS source_id, st.epoch, d.sn,
  CASE d.kind WHEN 0 THEN 'put' ELSE 'delete' END AS kind, {_TIME} AS time,
  tz.zid AS timestamp_id, d.stamped, e.name AS encoding, d.payload, d.attachment,
  d.qos & 7 AS priority, {_RECEIVED} AS received, st.key_id, d.stream_id, d.seconds, d.fraction
FROM dc_keys k
  CROSS JOIN LATERAL (
    SELECT c.* FROM dc_streams cst
      CROSS JOIN LATERAL (
        SELECT seconds, fraction FROM dc_samples WHERE stream_id = cst.id
        ORDER BY seconds DESC, fraction DESC LIMIT 1) last
      CROSS JOIN LATERAL (
        SELECT * FROM dc_samples WHERE stream_id = cst.id
          AND seconds = last.seconds AND fraction = last.fraction) c{_NAMES}
    WHERE cst.key_id = k.id {_LAST_IN_ORDER}) d
  JOIN dc_streams st ON st.id = d.stream_id
  JOIN dc_storages s ON s.id = st.storage_id
  JOIN dc_sources so ON so.id = st.source_id
  JOIN dc_zids z ON z.id = so.zid_id
  JOIN dc_encodings e ON e.id = d.encoding_id
  JOIN dc_zids tz ON tz.id = d.stamp_id"""  # noqa: S608  # constants of this file


def _sqlite() -> str:
    return f"""CREATE VIEW latest AS
SELECT n.* FROM dc_keys k JOIN samples n ON n.key_id = k.id
  AND (n.stream_id, n.sn) = (
    SELECT c.stream_id, c.sn FROM dc_streams cst
    JOIN dc_samples c ON c.stream_id = cst.id AND (c.seconds, c.fraction) = (
      SELECT seconds, fraction FROM dc_samples WHERE stream_id = cst.id
      ORDER BY seconds DESC, fraction DESC LIMIT 1){_NAMES}
    WHERE cst.key_id = k.id {_LAST_IN_ORDER})"""  # noqa: S608  # constants of this file


def downgrade() -> None:
    """Leave the view: it has the same columns."""
