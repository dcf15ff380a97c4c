"""What arguments are refused with: an error that names argument, value and what is taken."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from durable_cache.errors import ConfigError

__all__ = ["check_flag", "check_kind", "check_number", "check_text", "refused", "shown"]

_ValueT = TypeVar("_ValueT")
_SHOWN_MAX = 40


def shown(value: object) -> str:
    """Return a value's type and, where it is short, the value itself."""
    name = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, (bool, int, float, Enum)):
        return f"{value!r:.{_SHOWN_MAX}} ({name})"
    if isinstance(value, str) and len(value) <= _SHOWN_MAX:
        return f"{value!r} ({name})"
    if isinstance(value, type):
        return f"the class {name if name != 'type' else value.__name__}"
    return name


def refused(name: str, value: object, accepted: str) -> ConfigError:
    """Return the error for an argument that is not `accepted`."""
    return ConfigError(f"{name}: expected {accepted}, got {shown(value)}")


def check_kind(name: str, value: object, kind: type[_ValueT], accepted: str) -> _ValueT:
    """Return the value where it is of that type; ConfigError otherwise."""
    if not isinstance(value, kind):
        raise refused(name, value, accepted)
    return value


def check_flag(name: str, value: object) -> None:
    """ConfigError where a value is neither True nor False."""
    if not isinstance(value, bool):
        raise refused(name, value, "True or False")


def check_text(name: str, value: object) -> None:
    """ConfigError where a value is no text, or an empty one."""
    if not isinstance(value, str) or not value:
        raise refused(name, value, "a name")


def check_number(name: str, value: object, least: float, *, whole: bool) -> None:
    """ConfigError where a value is no number of at least `least`, or not a whole one."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
        what = "whole number" if whole else "number of seconds"
        raise refused(name, value, f"a {what} of at least {least:g}")
