"""How a session is opened and closed with Zenoh's own settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import zenoh
from zenoh import Config, Session, ZError

from durable_cache.endpoints.session.reasons import opening_reason, setting_reason
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import refused


def read_config(settings: Mapping[str, object] | None = None) -> Config:
    """Return Zenoh's own settings, checked by Zenoh; opens nothing.

    Raises ConfigError naming the setting that Zenoh does not take.
    """
    config = Config()
    for key, value in (settings or {}).items():
        try:
            config.insert_json5(key, json.dumps(value))
        except ZError as error:
            known = json.loads(str(Config()))
            raise ConfigError(f"{key}: {setting_reason(key, error, known)}") from error
    return config


def open_session(settings: Mapping[str, object] | Config | None = None) -> Session:
    """Open a session with Zenoh's own settings: a Config, or by top-level key as JSON has them.

    Raises ConfigError when Zenoh does not take a setting or cannot open with it. The caller closes
    the session explicitly: a process can hang at exit otherwise.
    """
    if settings is not None and not isinstance(settings, (Mapping, Config)):
        raise refused("settings", settings, "a mapping or a zenoh.Config")
    config = settings if isinstance(settings, Config) else read_config(settings)
    try:
        return zenoh.open(config)
    except ZError as error:
        reason = opening_reason(error, _endpoints(config))
        raise ConfigError(f"zenoh cannot open a session: {reason}") from error


def _endpoints(config: Config) -> list[str]:
    """Return the endpoints that a configuration names, for whichever mode."""
    found: list[str] = []
    for key in ("connect/endpoints", "listen/endpoints"):
        named = json.loads(config.get_json(key))
        for part in named.values() if isinstance(named, dict) else [named]:
            found += [text for text in part or [] if isinstance(text, str)]
    return found


def zid_of(session: Session) -> str:
    """Return the session's Zenoh id."""
    return str(session.zid())


def neighbours(session: Session) -> dict[str, str]:
    """Return the routers and peers that the session is linked with: their kinds by Zenoh id."""
    return {
        **{str(zid): "peer" for zid in session.info.peers_zid()},
        **{str(zid): "router" for zid in session.info.routers_zid()},
    }


def log_as_environment_says() -> None:
    """Let Zenoh itself write the log that ``RUST_LOG`` asks for; nothing where it is not set."""
    if os.environ.get("RUST_LOG"):
        zenoh.init_log_from_env_or("error")


def close_session(session: Session) -> None:
    """Close a session; a process whose session is open can hang at its exit."""
    session.close()  # type: ignore[no-untyped-call]
