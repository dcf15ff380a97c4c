"""How Alembic runs these migrations: on the connection it is handed, one transaction each."""

from __future__ import annotations

from alembic import context

attributes = context.config.attributes
connection = attributes.get("connection")
common = {
    "version_table": attributes.get("version_table", "dc_version"),
    "transactional_ddl": True,
    "transaction_per_migration": True,
    "target_metadata": None,
}
if context.is_offline_mode():
    context.configure(dialect_name=attributes["dialect"], literal_binds=True, **common)
    context.run_migrations()
else:
    context.configure(connection=connection, **common)
    with context.begin_transaction():
        context.run_migrations()
