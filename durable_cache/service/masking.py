"""Which settings are secret, how they are shown, and where a secret may be kept instead.

Wherever a setting of a volume is text, ``{env: "NAME"}`` or ``{file: "/path"}`` may stand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from durable_cache.errors import ConfigError

MASK = "***"
SECRET_BYTES_MAX = 64 * 1024
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|token$|secret|credential|api_?key$|private_key_base64$|access_key"
    r"|sas_|account_key",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?P<head>[a-zA-Z][a-zA-Z0-9+.-]*://[^/?#@:\s]*):[^/?#\s]*@")
_QUERY_SECRET = re.compile(
    r"(?P<head>[?&;#]\w*(?:password|token|secret|passwd|credential|private_key_base64)\w*=)[^&;\s]+",
    re.IGNORECASE,
)


def mask(value: object, name: str = "") -> object:
    """Return a copy of settings in which nothing secret can be read."""
    match value:
        case Mapping() if _is_reference(value):
            return dict(value)
        case _ if _SECRET_NAME.search(name) and value not in (None, ""):
            return MASK
        case Mapping():
            return {key: mask(inner, str(key)) for key, inner in value.items()}
        case list() | tuple():
            return [mask(inner, name) for inner in value]
        case str():
            return mask_text(value)
        case _:
            return value


def mask_text(text: str) -> str:
    """Return a text with the passwords of the URLs in it masked."""
    masked = _URL_PASSWORD.sub(rf"\g<head>:{MASK}@", text)
    return _QUERY_SECRET.sub(rf"\g<head>{MASK}", masked)


def _is_reference(value: Mapping[object, object]) -> bool:
    return len(value) == 1 and next(iter(value)) in ("env", "file")


def resolve_secrets(options: Mapping[str, object], where: str) -> dict[str, object]:
    """Replace the references in a volume's options by what they refer to.

    Raises `ConfigError` naming the setting and the variable or file, never the value.
    """
    return {
        name: resolve_secret(value, f"{where}.{name}")
        if isinstance(value, Mapping) and _is_reference(value)
        else value
        for name, value in options.items()
    }


def resolve_secret(reference: Mapping[str, object], where: str) -> str:
    """Return the text that ``{env: …}`` or ``{file: …}`` refers to."""
    ((kind, target),) = reference.items()
    if not isinstance(target, str) or not target:
        raise ConfigError(f"{where}.{kind}: expected text")
    if kind == "env":
        value = os.environ.get(target)
        if value is None:
            raise ConfigError(f"{where}: the environment variable {target} is not set")
        return value
    try:
        with Path(target).open("rb") as file:
            raw = file.read(SECRET_BYTES_MAX + 1)
        if len(raw) > SECRET_BYTES_MAX:
            raise ConfigError(f"{where}: {target} is larger than {SECRET_BYTES_MAX} bytes")
        return raw.decode("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{where}: {target}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: {target} is no UTF-8 text") from error
