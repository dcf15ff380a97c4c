"""How history moves between storages and files: the verbs ``copy``, ``export`` and ``import``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from durable_cache.errors import ConfigError, StorageUnavailable
from durable_cache.model.arguments import wrong_at
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.selection import Selection
from durable_cache.service.files import (
    BINARY,
    check_output,
    format_of,
    order_of,
    samples_to,
)
from durable_cache.service.layers import load_settings
from durable_cache.service.output import Progress, say, write_result
from durable_cache.service.verbs.options import add_config_options, add_json_option, overrides_of
from durable_cache.service.verbs.parsing import Verbs, add_verb
from durable_cache.service.whole_file import writing_whole
from durable_cache.storage.contract import Refusal, Storage
from durable_cache.storage.sized_pages import sized_pages

_REFUSALS_SHOWN = 5
_WHERE = "volume/storage, or the name of a configured storage"


def add_verbs(verbs: Verbs) -> None:
    """Add the verbs that open storages themselves."""
    copy = add_verb(
        verbs,
        "copy",
        examples=("durable-cache copy main/fleet lake/fleet --config fleet.json5",),
        description="Copies what the destination lacks and verifies it. A copy that was cut off "
        "goes on where it stopped: repeat the command.",
    )
    copy.add_argument("source", help=_WHERE)
    copy.add_argument("destination", help=_WHERE)
    copy.set_defaults(run=_copy)
    export = add_verb(
        verbs,
        "export",
        examples=(
            "durable-cache export fleet fleet.jsonl --config fleet.json5",
            "durable-cache export fleet poses.jsonl --only 'fleet/*/pose' --config fleet.json5",
            "durable-cache export fleet fleet.mcap --config fleet.json5",
        ),
        description="Write a storage's history to a file. As json, one line a sample, nothing is "
        "left out, and `import` reads it; the other formats are for other programs.",
    )
    export.add_argument("source", help=_WHERE)
    export.add_argument("file", help="a new file; its suffix is the format, json where it is none")
    export.add_argument("--format", choices=["json", "csv", *BINARY], default="")
    export.set_defaults(run=_export)
    bring = add_verb(
        verbs,
        "import",
        examples=("durable-cache import fleet.jsonl other/fleet --config fleet.json5",),
    )
    bring.add_argument("file")
    bring.add_argument("destination", help=_WHERE)
    bring.set_defaults(run=_import)
    for parser in (copy, export):
        parser.add_argument("--only", default="**", metavar="KEY_EXPR", help="only these keys")
    for parser in (copy, export, bring):
        add_json_option(parser)
        add_config_options(parser)


def _only(arguments: argparse.Namespace) -> KeyExpression:
    with wrong_at("--only"):
        return KeyExpression(arguments.only)


def _copy(arguments: argparse.Namespace) -> int:
    from durable_cache.service.places import find_place, reading, writing
    from durable_cache.storage.transfer import copy_history, missing_streams

    only = _only(arguments)
    settings = load_settings(overrides_of(arguments))
    source = find_place(settings, arguments.source)
    destination = find_place(settings, arguments.destination)
    if str(source) == str(destination):
        raise ConfigError(f"{source}: source and destination are the same")
    with reading(source) as theirs, writing(destination) as ours:
        total = sum(missing.samples for missing in missing_streams(theirs, ours, only))
        with Progress(f"{source} -> {destination}", total) as progress:
            result = copy_history(theirs, ours, only, progress.advance)
    _complain(result.refused)
    if result.conflicts:
        say(f"{result.conflicts} samples differ from what {destination} holds; they were left")
    if result.missing:
        say(f"{result.missing} samples are missing in {destination}; repeat the command")
    if arguments.json or not result.missing:
        write_result(
            f"{result.new} samples copied; {destination} holds all that {source} does",
            {
                "copied": result.new,
                "conflicts": result.conflicts,
                "missing": result.missing,
                "refused": len(result.refused),
            },
            as_json=arguments.json,
        )
    return 1 if result.refused or result.missing else 0


def _export(arguments: argparse.Namespace) -> int:
    from durable_cache.service.archive import export_history
    from durable_cache.service.places import find_place, reading

    only = _only(arguments)
    source = find_place(load_settings(overrides_of(arguments)), arguments.source)
    target = arguments.file
    form = format_of(arguments.format, target, "json")
    check_output(form, target)
    with reading(source) as storage, Progress(f"{source} -> {target}") as progress:
        if form == "json":
            with writing_whole(Path(target)) as file:
                samples = export_history(storage, only, file, progress.advance)
        else:
            samples = _export_rows(storage, only, form, target, progress.advance)
    write_result(
        f"{samples} samples exported to {target}",
        {"exported": samples, "file": target, "format": form},
        as_json=arguments.json,
    )
    return 0


def _export_rows(
    storage: Storage, only: KeyExpression, form: str, target: str, progress: Callable[[int], None]
) -> int:
    written = 0
    with samples_to(form, target) as file:
        for samples in sized_pages(storage.read, Selection(key_expr=only, order=order_of(form))):
            if samples:
                file.write(samples)
            written += len(samples)
            progress(len(samples))
    return written


def _import(arguments: argparse.Namespace) -> int:
    from durable_cache.service.archive import import_history
    from durable_cache.service.places import find_place, writing

    destination = find_place(load_settings(overrides_of(arguments)), arguments.destination)
    path = Path(arguments.file)
    try:
        file = path.open("rb")
    except OSError as error:
        raise StorageUnavailable(f"{path}: {error.strerror}") from error
    with file, writing(destination) as storage:
        with Progress(f"{path} -> {destination}") as progress:
            new, refused = import_history(storage, file, progress.advance)
    _complain(refused)
    write_result(
        f"{new} samples imported into {destination}",
        {"imported": new, "refused": len(refused)},
        as_json=arguments.json,
    )
    return 1 if refused else 0


def _complain(refused: Sequence[Refusal]) -> None:
    for refusal in refused[:_REFUSALS_SHOWN]:
        say(f"refused: {refusal.sample.key!r} {refusal.sample.source}: {refusal.reason}")
    if len(refused) > _REFUSALS_SHOWN:
        say(f"and {len(refused) - _REFUSALS_SHOWN} more were refused")
