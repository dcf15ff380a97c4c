"""Which setting wins where a file, the environment and the command line each name one.

The command line wins over the environment, the environment over the file, the file over defaults.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from durable_cache.errors import ConfigError
from durable_cache.service.config import STATE_DIR_DEFAULT, Settings, readable_settings
from durable_cache.service.document import parse_json5, read_document
from durable_cache.service.kept import FILE_NAME, KeptChanges, read_kept
from durable_cache.service.sections import SECTION
from durable_cache.service.strict import Findings, read_table

LISTEN_DEFAULT = "tcp/[::]:7447"
ENVIRONMENT = {
    "DURABLE_CACHE_CONFIG": "config",
    "DURABLE_CACHE_STATE_DIR": "state_dir",
    "DURABLE_CACHE_DOMAIN": "domain",
    "DURABLE_CACHE_HTTP": "http",
    "DURABLE_CACHE_MODE": "mode",
    "DURABLE_CACHE_LISTEN": "listen",
    "DURABLE_CACHE_CONNECT": "connect",
    "DURABLE_CACHE_KEY_EXPR": "key_expr",
}
_ZENOHS_FILE = "ZENOH_CONFIG"
"""Names the file as it does for Zenoh's programs, where `DURABLE_CACHE_CONFIG` does not."""
_LISTS = frozenset({"listen", "connect", "key_expr"})
_PREFIX = "DURABLE_CACHE_"
_NEAR = 0.85
"""Of the name behind the prefix: other rooms have variables of their own."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings named outside the file; empty means not named."""

    config: str = ""
    state_dir: str = ""
    domain: str = ""
    http: str = ""
    mode: str = ""
    listen: Sequence[str] = ()
    connect: Sequence[str] = ()
    key_expr: Sequence[str] = ()
    rest: str = ""
    """A port, or ``host:port``; ``none`` serves no keys over HTTP."""
    zid: str = ""
    cfg: Sequence[str] = ()
    """``key/of/a/setting:value``, the value in JSON5, as zenohd's ``--cfg`` has them."""
    permissions: str = ""
    """What the admin space allows: ``r``, ``w``, ``rw`` or ``none``."""
    scouting_off: bool = False

    def over(self, other: Overrides) -> Overrides:
        """Return these settings, and those of `other` where these name none."""
        names = Overrides.__dataclass_fields__
        return Overrides(**{name: getattr(self, name) or getattr(other, name) for name in names})


def overrides_from(environment: Mapping[str, str]) -> Overrides:
    """Read the ``DURABLE_CACHE_*`` variables; lists are separated by commas.

    Raises `ConfigError` for a variable that is plainly a misspelt one of ours.
    """
    values: dict[str, str | list[str]] = {}
    if environment.get(_ZENOHS_FILE):
        values["config"] = environment[_ZENOHS_FILE]
    for name, text in environment.items():
        setting = ENVIRONMENT.get(name)
        if setting is not None and text:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            values[setting] = parts if setting in _LISTS else text
        elif setting is None and name.startswith(_PREFIX):
            own = [known.removeprefix(_PREFIX) for known in ENVIRONMENT]
            near = difflib.get_close_matches(name.removeprefix(_PREFIX), own, n=1, cutoff=_NEAR)
            if near:
                meant = f"{_PREFIX}{near[0]}"
                raise ConfigError(f"environment: {name} is unknown; did you mean {meant}?")
    return Overrides(**cast("dict[str, Any]", values))


def load_settings(
    overrides: Overrides, note_more: Callable[[Settings, Findings], object] | None = None
) -> Settings:
    """Read the file that `overrides` names, if any, and lay the overrides over it.

    Without a file the embedded default is meant: ``**`` kept on disk under ``state_dir``.
    `note_more` looks for further mistakes in what is right so far. Raises `ConfigError`.
    """
    path = Path(overrides.config) if overrides.config else None
    document = read_document(path) if path else _embedded()
    kept = KeptChanges()
    findings = Findings()
    with findings.noting():
        plugins = read_table(document.get("plugins", {}), "plugins")
        if path and overrides.key_expr:
            if "durable_cache" in plugins:
                raise ConfigError("--key-expr: the file names the storages; edit it there")
            document["plugins"] = {**plugins, "durable_cache": {}}
        whole = _laid_over(document, overrides)
        kept = _kept(whole)
        settings = replace(readable_settings(_changed(whole, kept), findings), kept=kept)
        if note_more is not None:
            note_more(settings, findings)
    findings.end(lambda text: _placed(text, path, kept))  # raises where there are no settings
    return settings


def _placed(text: str, path: Path | None, kept: KeptChanges) -> str:
    """Return a mistake with the file that it stands in, and what else has a say in it."""
    head = f"{path}: " if path else ""
    is_changed = any(f".storages.{name}" in text for name in kept.names)
    tail = f"; {FILE_NAME} in state_dir changes this storage" if is_changed else ""
    return f"{head}{text}{tail}"


def _ours_of(whole: Mapping[str, object]) -> Mapping[str, object]:
    plugins = read_table(whole.get("plugins", {}), "plugins")
    return read_table(plugins.get("durable_cache", {}), SECTION)


def _kept(whole: Mapping[str, object]) -> KeptChanges:
    """Return what was changed while a service with this state directory ran."""
    state_dir = _ours_of(whole).get("state_dir", STATE_DIR_DEFAULT)
    if not isinstance(state_dir, str) or not state_dir or "\0" in state_dir:
        return KeptChanges()  # it is refused when the settings are read
    return read_kept(Path(state_dir))


def _changed(whole: Mapping[str, object], kept: KeptChanges) -> Mapping[str, object]:
    """Return the configuration with its storages as they were changed."""
    if not kept.names:
        return whole
    ours = _ours_of(whole)
    storages = read_table(ours.get("storages", {}), f"{SECTION}.storages")
    plugins = {**read_table(whole["plugins"], "plugins")}
    plugins["durable_cache"] = {**ours, "storages": kept.over(storages)}
    return {**whole, "plugins": plugins}


def _embedded() -> dict[str, object]:
    return {
        "mode": "peer",
        "plugins": {"durable_cache": {"storages": {"cache": _everything(["**"])}}},
    }


def _everything(key_exprs: Iterable[str]) -> dict[str, object]:
    """Return a storage that no file describes: who tries us out sees what he publishes."""
    return {"key_expr": list(key_exprs), "unnumbered": "store"}


def _laid_over(document: Mapping[str, object], overrides: Overrides) -> dict[str, object]:
    whole = copy.deepcopy(dict(document))
    lay_over_zenoh(whole, overrides)
    if not overrides.config and not {"listen", "connect"} & set(whole):
        whole["listen"] = {"endpoints": [LISTEN_DEFAULT]}
    plugins = dict(read_table(whole.get("plugins", {}), "plugins"))
    if "durable_cache" in plugins:
        ours = dict(read_table(plugins["durable_cache"], "plugins.durable_cache"))
        plugins["durable_cache"] = _ours(ours, overrides)
        whole["plugins"] = plugins
    return whole


def lay_over_zenoh(whole: dict[str, object], overrides: Overrides) -> None:
    """Change Zenoh's own settings in `whole` to what `overrides` names."""
    if overrides.mode:
        whole["mode"] = overrides.mode
    if overrides.zid:
        whole["id"] = overrides.zid
    for name, endpoints in (("listen", overrides.listen), ("connect", overrides.connect)):
        if endpoints:
            _insert(whole, f"{name}/endpoints", list(endpoints))
    if overrides.scouting_off:
        _insert(whole, "scouting/multicast/enabled", False)
    if overrides.permissions:
        allowed = {"read": "r" in overrides.permissions, "write": "w" in overrides.permissions}
        if overrides.permissions == "none":
            allowed = {"read": False, "write": False}
        _insert(whole, "adminspace/permissions", allowed)
    for text in overrides.cfg:
        path, colon, value = text.partition(":")
        if not colon or not path.strip("/"):
            raise ConfigError(f"--cfg {text[:80]!r}: write KEY:VALUE, as in mode:'\"router\"'")
        try:
            parsed = parse_json5(value)
        except ConfigError as error:
            raise ConfigError(
                f"--cfg {path}: the value is no JSON5, {error}; text stands in quotes of its own, "
                f"as in {path}:'\"text\"'"
            ) from error
        _insert(whole, path.strip("/"), parsed)


def _insert(whole: dict[str, object], path: str, value: object) -> None:
    """Set what stands at ``a/b/c``, making the tables on the way."""
    *tables, last = path.split("/")
    inner = whole
    for depth, name in enumerate(tables, 1):
        where = ".".join(tables[:depth])
        inner[name] = found = dict(read_table(inner.get(name, {}), where))
        inner = found
    inner[last] = value


def _ours(ours: dict[str, object], overrides: Overrides) -> dict[str, object]:
    if overrides.state_dir:
        ours["state_dir"] = overrides.state_dir
    if overrides.domain:
        ours["domain"] = overrides.domain
    if overrides.http:
        ours["http"] = {"listen": overrides.http}
    if overrides.rest:
        off, is_port = overrides.rest == "none", overrides.rest.isdigit()
        listen = f"127.0.0.1:{overrides.rest}" if is_port else overrides.rest
        named = read_table(ours.get("rest", {}), f"{SECTION}.rest")
        ours["rest"] = {**named, "listen": "" if off else listen}
    if overrides.key_expr:
        ours["storages"] = {"cache": _everything(overrides.key_expr)}
    return ours
