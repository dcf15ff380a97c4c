"""Where the services are, under names a person gave: the profiles of ``durable-cache context``.

One small file under the user's configuration directory holds them all. It is written whole or not
at all, and read by nobody else but verbs that ask running services.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from durable_cache.errors import ConfigError
from durable_cache.service.verbs.parsing import nearest
from durable_cache.service.whole_file import writing_whole

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_CONTEXTS_MAX = 1000


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One profile: what a verb would else be told by ``--connect`` and ``--config``."""

    connect: tuple[str, ...] = ()
    config: str = ""
    """Zenoh's configuration, the absolute path of a file."""


class Contexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All profiles, and which one is used; none where the name is empty."""

    current: str = ""
    contexts: dict[str, Context] = msgspec.field(default_factory=dict)

    def named(self, name: str) -> Context:
        """Return a profile; ConfigError with the nearest name where there is none."""
        found = self.contexts.get(name)
        if found is None:
            known = f"there are: {', '.join(self.contexts)}" if self.contexts else "there is none"
            raise ConfigError(
                f"no context is called {name[:80]!r}{nearest(name, self.contexts)}; {known}; "
                "durable-cache context add makes one"
            )
        return found

    def with_one(self, name: str, context: Context, *, use: bool) -> Contexts:
        """Return these and one more; ConfigError where the name is taken or is none."""
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{name[:80]!r} is no name of a context: write up to 64 letters, digits, _ . -"
            )
        if name in self.contexts:
            raise ConfigError(
                f"a context is called {name!r} already; durable-cache context remove {name}, first"
            )
        if len(self.contexts) >= _CONTEXTS_MAX:
            raise ConfigError(f"there are {_CONTEXTS_MAX} contexts, remove some first")
        return Contexts(name if use else self.current, {**self.contexts, name: context})

    def without(self, name: str) -> Contexts:
        """Return these without one; ConfigError where there is none of that name."""
        self.named(name)
        left = {other: context for other, context in self.contexts.items() if other != name}
        return Contexts("" if self.current == name else self.current, left)

    def using(self, name: str) -> Contexts:
        """Return these with another one in use, none where `name` is empty."""
        if name:
            self.named(name)
        return Contexts(name, self.contexts)

    def write(self, path: Path) -> None:
        """Replace the file, durably; only its owner can read it. Raises ConfigError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with writing_whole(path, 0o600) as file:
                file.write(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        except OSError as error:
            raise ConfigError(f"contexts {path}: {error.strerror}") from error


def contexts_file(environment: Mapping[str, str]) -> Path | None:
    """Return where the profiles are kept; None for a user without a home."""
    named = environment.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(named):
        return Path(named) / "durable-cache" / "contexts.json"
    home = environment.get("HOME", "")
    return Path(home) / ".config" / "durable-cache" / "contexts.json" if home else None


def read_contexts(environment: Mapping[str, str]) -> Contexts:
    """Return the profiles there are; ConfigError where their file cannot be read."""
    path = contexts_file(environment)
    if path is None:
        return Contexts()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigError(f"contexts {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"contexts {path}: {error}; correct it, or move it away") from error


def chosen_context(name: str, environment: Mapping[str, str]) -> tuple[str, Context]:
    """Return the profile of a name, or the environment's, or the one in use; else an empty one."""
    name = name or environment.get("DURABLE_CACHE_CONTEXT", "")
    found = read_contexts(environment)
    if not name:
        # One that was in use and is gone from the file by hand is an error, too.
        name = found.current
    return (name, found.named(name)) if name else ("", Context())
