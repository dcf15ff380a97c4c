"""What arguments are refused with: an error that names argument, value and what is taken."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from durable_cache.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_ValueT = TypeVar("_ValueT")
_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
DOMAIN_WORDS = "1 to 64 of A-Z a-z 0-9 _ . -"
FOR_EVER_SECONDS = 1e9
_OptionsT = TypeVar("_OptionsT", bound="DataclassInstance")
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


@contextmanager
def wrong_at(where: str) -> Iterator[None]:
    """Turn what the block refuses as a value into a ConfigError that begins with its place."""
    try:
        yield
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from error


def check_kind(name: str, value: object, kind: type[_ValueT], accepted: str) -> _ValueT:
    """Return the value where it is of that type; ConfigError otherwise."""
    if not isinstance(value, kind):
        raise refused(name, value, accepted)
    return value


def with_named(caller: str, options: _OptionsT, named: Mapping[str, object]) -> _OptionsT:
    """Return options with those that are named; TypeError with the nearest for one unknown."""
    known = [field.name for field in fields(options)]
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}{meant}")
    return replace(options, **named)


def check_flag(name: str, value: object) -> None:
    """ConfigError where a value is neither True nor False."""
    if not isinstance(value, bool):
        raise refused(name, value, "True or False")


def check_text(name: str, value: object) -> None:
    """ConfigError where a value is no text, or an empty one."""
    if not isinstance(value, str) or not value:
        raise refused(name, value, "a name")


def is_domain(value: object) -> bool:
    """Tell whether a value can be a domain's name, which is a chunk of every key of ours."""
    return isinstance(value, str) and _DOMAIN.fullmatch(value) is not None


def check_domain(value: object, name: str = "domain") -> None:
    """ConfigError where a value is no domain's name."""
    if not is_domain(value):
        raise refused(name, value, f"{DOMAIN_WORDS}, a letter or a digit first")


def check_number(name: str, value: object, least: float, *, whole: bool) -> None:
    """ConfigError where a value is no number of at least `least`, or not a whole one."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
        what = "whole number" if whole else "number of seconds"
        raise refused(name, value, f"a {what} of at least {least:g}")


def check_timeout(value: object, name: str = "timeout_seconds") -> None:
    """ConfigError where a value is neither None, for ever, nor a number of seconds from 0 on."""
    if value is not None:
        check_number(name, value, 0, whole=False)


def read_timeout(value: object, name: str = "timeout_seconds") -> float:
    """Return how long to wait, for ever being thirty years; ConfigError as `check_timeout`.

    Neither a lock nor a sum of times takes more, or an infinity.
    """
    check_timeout(value, name)
    seconds = value if isinstance(value, (int, float)) else FOR_EVER_SECONDS
    return min(seconds, FOR_EVER_SECONDS)


def check_callable(name: str, value: object) -> None:
    """ConfigError where a value cannot be called."""
    if not callable(value) or isinstance(value, type):
        raise refused(name, value, "something to call")


def check_fields(options: object) -> None:
    """ConfigError that names the first field of some options whose value is not of its type.

    Options within options are looked at too, under their own names.
    """
    kind: Any = type(options)
    for name, hint in _hints(kind):
        value = getattr(options, name)
        if not _fits(value, hint):
            raise refused(name, value, " or ".join(_said(hint)))
        if is_dataclass(value) and not isinstance(value, type):
            check_fields(value)


def bounded(options: _OptionsT) -> _OptionsT:
    """Return checked options in which for ever, in every time, is thirty years, as in waits."""
    found: dict[str, Any] = {}
    for name, hint in _hints(type(options)):
        value = getattr(options, name)
        if is_dataclass(value) and not isinstance(value, type):
            inner = bounded(value)
            if inner is not value:
                found[name] = inner
        elif (
            float in (hint, *get_args(hint))
            and isinstance(value, (int, float))
            and value > FOR_EVER_SECONDS
        ):
            found[name] = FOR_EVER_SECONDS
    return replace(options, **found) if found else options


@lru_cache(maxsize=64)
def _hints(options: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(options)
    return tuple((field.name, hints[field.name]) for field in fields(options))


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint in (Any, object) or isinstance(hint, TypeVar):
        return True
    if hint in (int, float):
        kinds = int if hint is int else (int, float)
        is_number = isinstance(value, kinds) and not isinstance(value, (bool, Enum))
        return is_number and value == value  # NaN is no number
    return isinstance(value, origin or hint)


_PLAIN: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a str",
    NoneType: "None",
    Callable: "something to call",
}


def _said(hint: Any) -> list[str]:
    """Return what fits a type, in words."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return [said for part in get_args(hint) for said in _said(part)]
    if origin is Literal:
        return [repr(choice) for choice in get_args(hint)]
    kind = origin or hint
    return [_PLAIN.get(kind) or f"a {kind.__name__}"]
