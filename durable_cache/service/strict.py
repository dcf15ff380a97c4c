"""How a plain mapping becomes a frozen model, and how a mistake in it is named for people.

An unknown name is an error that says where it stands and which known name is nearest.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, Union, cast

import msgspec

from durable_cache.errors import (
    BackendNotFound,
    BackendNotInstalled,
    ConfigError,
    DurableCacheError,
)
from durable_cache.service.quantities import plain_number

ModelT = TypeVar("ModelT", bound=msgspec.Struct)
_NEAR = 0.55
"""How like a known name a misspelt one is, at least: ``typo`` means no ``http``."""
_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_NOTHING: Mapping[str, object] = types.MappingProxyType({})


def read_table(raw: object, where: str) -> Mapping[str, object]:
    """Return `raw` as a table of named settings; ConfigError at `where` when it is none."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where}: expected a table {{…}}, got {_kind(raw)}")
    for name in raw:
        if not isinstance(name, str):
            raise ConfigError(f"{where}: the name {name!r} is no text; put it in quotes")
    return cast("Mapping[str, object]", raw)


class Mistakes(ConfigError):
    """Several settings are wrong; each of `mistakes` is named as it would be alone."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(mistakes))


class Findings:
    """Collects what is wrong, so that people see all of it at once."""

    def __init__(self) -> None:
        self._errors: list[DurableCacheError] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Go on behind the block when something in it is wrong."""
        try:
            yield
        except (ConfigError, BackendNotFound, BackendNotInstalled) as error:
            self._errors.append(error)

    def end(self, placed: Callable[[str], str] | None = None) -> None:
        """Raise what was found, if anything was: an error alone as it is, or as `placed` has it."""
        if not self._errors:
            return
        if len(self._errors) == 1 and placed is None:
            raise self._errors[0]
        texts = [text for error in self._errors for text in mistakes_of(error)]
        if placed is not None:
            texts = [placed(text) for text in texts]
        raise (Mistakes(texts) if texts[1:] else ConfigError(texts[0])) from self._errors[0]


def mistakes_of(error: Exception) -> tuple[str, ...]:
    """Return what an error names, one or several."""
    return error.mistakes if isinstance(error, Mistakes) else (str(error),)


def check_names(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise ConfigError at each of `names` that is not `known`, suggesting the nearest."""
    allowed = sorted(known)
    findings = Findings()
    for name in names:
        with findings.noting():
            if name not in allowed:
                near = difflib.get_close_matches(name, allowed, n=1, cutoff=_NEAR)
                hint = f"known: {', '.join(allowed)}" if allowed else "none is known here"
                if near:
                    hint = f"did you mean {near[0]!r}?"
                raise ConfigError(f"{where}.{name}: unknown setting; {hint}")
    findings.end()


def read_model(kind: type[ModelT], raw: object, where: str) -> ModelT:
    """Read a model and the models in its fields; ConfigError names the path of each mistake.

    Seconds and bytes may be written as text, as in ``"7d"``.
    """
    findings = Findings()
    model = readable_model(kind, raw, where, findings)
    findings.end()
    if model is None:
        raise AssertionError(f"{where}: where no model can be made, a mistake was noted")
    return model


def readable_model(
    kind: type[ModelT],
    raw: object,
    where: str,
    findings: Findings,
    instead: Mapping[str, object] = _NOTHING,
) -> ModelT | None:
    """Read what is right of a model and note each mistake, so that the rest can be checked too.

    A field that is wrong has its default, or its value of `instead`; None where it has neither.
    """
    model: ModelT | None = None
    with findings.noting():
        table = read_table(raw, where)
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        with findings.noting():
            check_names(table, fields, where)
        values = dict(instead)
        for name in [name for name in table if name in fields]:
            with findings.noting():
                values[name] = _read_field(name, fields[name].type, table[name], where, findings)
        unknown = [name for name in table if name not in fields]
        for name in [name for name, field in fields.items() if field.required]:
            with findings.noting():
                # One that is misspelt was named already, with what was meant.
                if name not in table and not _is_near(name, unknown):
                    raise ConfigError(f"{where}: missing required field {name}")
        if all(name in values for name, field in fields.items() if field.required):
            model = _converted(values, kind, where)
    return model


def _is_near(name: str, others: Iterable[str]) -> bool:
    return bool(difflib.get_close_matches(name, list(others), n=1, cutoff=_NEAR))


def _converted(values: Mapping[str, object], kind: type[ModelT], where: str) -> ModelT:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        types_of = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        raise ConfigError(_located(str(error), where, types_of)) from error


def _read_field(
    name: str, annotation: object, value: object, where: str, findings: Findings
) -> object:
    """Return a field's value as its model takes it."""
    inner = _model_in(annotation)
    if inner is not None and value is not None:
        model = readable_model(inner, value, f"{where}.{name}", findings)
        return inner() if model is None else model
    if isinstance(value, str) and not _takes_text(annotation):
        value = plain_number(name, value, f"{where}.{name}")
    elif typing.get_origin(annotation) is dict and not _takes_text(annotation):
        return _read_entries(annotation, value, f"{where}.{name}", findings)
    try:
        msgspec.convert({name: value}, dict[str, annotation])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        # msgspec names the place by the dictionary that stands around the value here.
        text = str(error).replace("$[...]", f"$.{name}")
        raise ConfigError(_located(text, where, {name: annotation})) from error
    return value


def _read_entries(
    annotation: object, table: object, where: str, findings: Findings
) -> dict[str, object]:
    """Return what is right of a table of values by name, and note each mistake by its own."""
    *_, kind = typing.get_args(annotation)
    entries: dict[str, object] = {}
    for name, value in read_table(table, where).items():
        with findings.noting():
            entries[name] = _read_field(name, kind, value, where, findings)
    return entries


def _takes_text(annotation: object) -> bool:
    """Tell whether text may stand in a field, or in the table that it holds."""
    if typing.get_origin(annotation) is typing.Literal or annotation in (str, object, Any):
        return True
    parts = typing.get_args(annotation)
    values = parts[1:] if typing.get_origin(annotation) is dict else parts
    return any(_takes_text(part) for part in values)


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
    wrong = re.search(r"'(.*)'", lowered) if choices else None
    near = difflib.get_close_matches(wrong[1], choices, n=1) if wrong else []
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{where}{path}: {_in_words(lowered)}{hint}{meant}"


def _in_words(text: str) -> str:
    """Return what was expected in the words of who writes the file."""
    if not text.startswith("expected "):
        return text
    for word, plain in _KINDS.items():
        text = re.sub(rf"\b{word}\b", plain, text)
    return text.replace(" | ", " or ").replace("a whole number or a number", "a number")


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
