"""The JSON schema of a configuration file, for editors: names, types, meanings and defaults.

Made from the same models that read the file. Options of volumes are those of the backends that are
installed; of a backend that is not, any option is allowed.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec

from durable_cache.errors import BackendNotInstalled, ConfigError
from durable_cache.service.building import limit_names
from durable_cache.service.config import BACKENDS, STATE_DIR_DEFAULT, StorageSettings
from durable_cache.service.pipe_settings import PIPES_MAX, PipeSettings
from durable_cache.service.piping import pipe_limit_names
from durable_cache.service.sections import HttpSettings, RestSettings
from durable_cache.storage.plugins import find_backend, installed_backends

_SECRET = {
    "type": "object",
    "description": "Read when the service starts, from a variable or a file; never shown.",
    "properties": {"env": {"type": "string"}, "file": {"type": "string"}},
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}
Schema = dict[str, Any]


def configuration_schema() -> Schema:
    """Return the schema of the whole file; what is Zenoh's own is left open."""
    models: list[type[msgspec.Struct]] = [HttpSettings, RestSettings, StorageSettings, PipeSettings]
    (http, rest, storage, pipe), parts = msgspec.json.schema_components(
        models, ref_template="#/$defs/{name}"
    )
    defs: Schema = {name: _told(part) for name, part in parts.items()}
    for model in _models_below(*models):
        _describe(defs[model.__name__], model)
    defs["StorageSettings"]["properties"]["volume"] = {
        "description": "The volume's name, or zenohd's {id: name}.",
        "anyOf": [{"type": "string"}, {"type": "object", "required": ["id"]}],
    }
    defs["StorageSettings"]["properties"]["limits"] = _limits(
        "Bounds of queues and windows.", limit_names()
    )
    defs["PipeSettings"]["properties"]["limits"] = _limits(
        "Bounds of frames, pauses and caches.", pipe_limit_names()
    )
    ours: Schema = {
        "type": "object",
        "additionalProperties": False,
        "required": ["storages"],
        "properties": {
            "state_dir": {"type": "string", "default": STATE_DIR_DEFAULT},
            "domain": {"type": "string", "default": "default"},
            "http": http,
            "rest": rest,
            "volumes": {"type": "object", "additionalProperties": {"anyOf": _volumes()}},
            "storages": {"type": "object", "minProperties": 1, "additionalProperties": storage},
            "pipes": {
                "type": "object",
                "maxProperties": PIPES_MAX,
                "additionalProperties": pipe,
            },
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of durable-cache",
        "type": "object",
        "properties": {
            "plugins": {"type": "object", "properties": {"durable_cache": ours}},
        },
        "$defs": defs,
    }


def _limits(description: str, names: Iterable[str]) -> Schema:
    return {
        "description": description,
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
            for name in sorted(names)
        },
    }


def _volumes() -> list[Schema]:
    """Return what a volume may be, backend by backend."""
    found: list[Schema] = []
    for name in installed_backends():
        try:
            options = find_backend(name).options_type
        except (BackendNotInstalled, ConfigError):
            found.append({"properties": {"backend": {"const": name}}, "required": ["backend"]})
            continue
        _, parts = msgspec.json.schema_components([options])
        part = _told(parts[options.__name__])
        _describe(part, options)
        for field in part["properties"].values():
            _or_secret(field)
        names = [alias for alias, means in BACKENDS.items() if means == name]
        part["properties"]["backend"] = {"enum": sorted({name, *names})}
        part["additionalProperties"] = False
        part.pop("title", None)
        found.append(part)
    return found


def _told(part: Schema) -> Schema:
    """Return a model's schema where seconds and bytes may be text, and nothing else may stand."""
    part = {**part, "properties": dict(part.get("properties", {}))}
    part.setdefault("additionalProperties", False)
    for name, field in part["properties"].items():
        if {"seconds", "bytes"} & set(name.split("_")):
            default = {"default": field["default"]} if "default" in field else {}
            kinds = [{k: v for k, v in field.items() if k != "default"}, {"type": "string"}]
            part["properties"][name] = {"anyOf": kinds, **default}
    return part


def _or_secret(field: Schema) -> None:
    """Let a reference to a secret stand where text may."""
    kinds = field.get("anyOf", [field])
    if any(kind.get("type") == "string" for kind in kinds):
        plain = {
            name: field.pop(name) for name in list(field) if name not in ("default", "description")
        }
        field["anyOf"] = [*plain.get("anyOf", [plain]), _SECRET]


def _models_below(*models: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Return models and those in their fields."""
    found = list(models)
    for model in found:
        for field in msgspec.structs.fields(model):
            for part in (field.type, *typing.get_args(field.type)):
                if isinstance(part, type) and issubclass(part, msgspec.Struct):
                    found += [] if part in found else [part]
    return found


def _describe(part: Schema, model: type[msgspec.Struct]) -> None:
    """Write the text under each field of a model's class into its schema."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    names: dict[str, str] = {}
    if issubclass(model, msgspec.Struct):  # a backend's options may be a dataclass
        names = {field.name: field.encode_name for field in msgspec.structs.fields(model)}
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                written = names.get(name, name)
                if written in part["properties"]:
                    described = " ".join(words.replace("``", "").split())
                    part["properties"][written]["description"] = described
            case _:
                continue
