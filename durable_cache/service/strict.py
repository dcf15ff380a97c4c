"""How a plain mapping becomes a frozen model, and how a mistake in it is named for people.

An unknown name is an error that says where it stands and which known name is nearest.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import TypeVar, Union, cast

import msgspec

from durable_cache.errors import ConfigError

__all__ = ["check_names", "read_model", "read_table"]

ModelT = TypeVar("ModelT", bound=msgspec.Struct)


def read_table(raw: object, where: str) -> Mapping[str, object]:
    """Return `raw` as a table of named settings; ConfigError at `where` when it is none."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where}: expected a table {{…}}, got {_kind(raw)}")
    for name in raw:
        if not isinstance(name, str):
            raise ConfigError(f"{where}: the name {name!r} is no text; put it in quotes")
    return cast("Mapping[str, object]", raw)


def check_names(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise ConfigError at the first of `names` that is not `known`, suggesting the nearest."""
    allowed = sorted(known)
    for name in names:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(allowed)}"
            raise ConfigError(f"{where}.{name}: unknown setting; {hint}")


def read_model(kind: type[ModelT], raw: object, where: str) -> ModelT:
    """Read a model and the models in its fields; ConfigError names the path of the mistake."""
    table = read_table(raw, where)
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    check_names(table, fields, where)
    values = dict(table)
    for name, value in table.items():
        inner = _model_in(fields[name])
        if inner is not None and value is not None:
            values[name] = read_model(inner, value, f"{where}.{name}")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_located(str(error), where, fields)) from error


def _model_in(annotation: object) -> type[msgspec.Struct] | None:
    """Return the model a field holds, also where it may be None."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        found = (_model_in(part) for part in typing.get_args(annotation))
        return next((part for part in found if part is not None), None)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return None


def _located(message: str, where: str, fields: Mapping[str, object]) -> str:
    """Turn msgspec's ``Expected X, got Y - at `$.a` `` into ``where.a: expected X, got Y``."""
    text, _, path = message.partition(" - at `$")
    text = text.replace("`", "").replace(" | null", " or null").replace("Object missing", "missing")
    lowered = re.sub(r"^[A-Z](?=[a-z])", lambda match: match[0].lower(), text)
    path = path.rstrip("`")
    choices = _choices(fields.get(path.lstrip("."))) if lowered.startswith("invalid enum") else []
    hint = f"; one of: {', '.join(choices)}" if choices else ""
    return f"{where}{path}: {lowered}{hint}"


def _choices(annotation: object) -> list[str]:
    """Return the texts a field may hold, none where it is free."""
    if typing.get_origin(annotation) is typing.Literal:
        return sorted(str(choice) for choice in typing.get_args(annotation))
    return []


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the switch {str(value).lower()}"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return type(value).__name__
