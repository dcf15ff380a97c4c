"""Leave samples without a number out of `gaps`: between two timestamps nothing is missing."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the view anew, with the same columns; the service does not use it."""
    _make("JOIN dc_sources numbered ON numbered.id = st.source_id AND numbered.eid <> 0")


def downgrade() -> None:
    """Make the view as it was."""
    _make("")


def _make(numbered: str) -> None:
    op.execute("DROP VIEW gaps")
    op.execute(
        f"""CREATE VIEW gaps AS
SELECT s.name AS storage, z.zid || ':' || so.eid AS source_id, g.epoch,
  g.previous + 1 AS first_sn, g.sn - 1 AS last_sn,
  EXISTS (SELECT 1 FROM dc_skips p WHERE p.storage_id = g.storage_id
    AND p.source_id = g.source_id AND p.epoch = g.epoch
    AND p.first_sn <= g.previous + 1 AND p.last_sn >= g.sn - 1) AS given_up
FROM (
  SELECT st.storage_id, st.source_id, st.epoch, d.sn, lag(d.sn) OVER (
    PARTITION BY st.storage_id, st.source_id, st.epoch ORDER BY d.sn) AS previous
  FROM dc_streams st {numbered} JOIN dc_samples d ON d.stream_id = st.id) g
JOIN dc_storages s ON s.id = g.storage_id
JOIN dc_sources so ON so.id = g.source_id
JOIN dc_zids z ON z.id = so.zid_id
WHERE g.sn > g.previous + 1"""  # noqa: S608  # constants of this file
    )
