"""${message}."""

from __future__ import annotations

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Say what changes, and why it may run before (pre) or after (post) the new version."""


def downgrade() -> None:
    """Undo it."""
