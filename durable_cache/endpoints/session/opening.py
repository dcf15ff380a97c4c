"""How a session is opened and closed with Zenoh's own settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

import zenoh
from zenoh import Config, Session, ZError

from durable_cache.errors import ConfigError
from durable_cache.model.arguments import refused

__all__ = [
    "close_session",
    "log_as_environment_says",
    "neighbours",
    "open_session",
    "read_config",
    "zenoh_reason",
    "zid_of",
]


def read_config(settings: Mapping[str, object] | None = None) -> Config:
    """Return Zenoh's own settings, checked by Zenoh; opens nothing.

    Raises ConfigError naming the setting that Zenoh does not take.
    """
    config = Config()
    for key, value in (settings or {}).items():
        try:
            config.insert_json5(key, json.dumps(value))
        except ZError as error:
            raise ConfigError(f"{key}: {zenoh_reason(error)}") from error
    return config


def zenoh_reason(error: ZError) -> str:
    """Return what Zenoh says about an error, without the places in its sources."""
    text = re.sub(r" at /[^ ]*\.rs:[0-9]+\.?", "", str(error))
    if text == 'Str("unknown key")':
        return "Zenoh knows no such setting"
    inner = re.match(r'Json5Err\(Message { msg: "(.*)", location: ', text, re.DOTALL)
    return f"Zenoh: {inner[1]}" if inner else text.strip()


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
        raise ConfigError(f"zenoh cannot open a session: {zenoh_reason(error)}") from error


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
