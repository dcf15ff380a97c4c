"""What a configuration means in effect: the verb ``check-config``."""

from __future__ import annotations

import argparse
from pathlib import Path

from durable_cache.errors import ConfigError
from durable_cache.service.output import say, write_json
from durable_cache.service.verbs.options import add_config_options, overrides_of
from durable_cache.service.verbs.parsing import Verbs, add_verb


def add_verbs(verbs: Verbs) -> None:
    """Add ``check-config``."""
    parser = add_verb(
        verbs,
        "check-config",
        examples=(
            "durable-cache check-config fleet.json5",
            "durable-cache check-config --from-zenohd zenohd.json5",
        ),
    )
    parser.add_argument("file", nargs="?", default="", help="the configuration file")
    parser.add_argument(
        "--schema", action="store_true", help="print the file's JSON schema, for editors, instead"
    )
    parser.add_argument(
        "--from-zenohd",
        default="",
        metavar="FILE",
        help="print what zenohd's file with its storages is here, as a file for `serve`",
    )
    parser.add_argument("--json", action="store_true", help="it always is")
    add_config_options(parser)
    parser.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        from durable_cache.service.schema import configuration_schema

        write_json(configuration_schema())
        return 0
    if arguments.from_zenohd:
        return _translate(Path(arguments.from_zenohd))
    from durable_cache.service.building import check_all, effective_limits, note_mistakes
    from durable_cache.service.layers import Overrides, load_settings

    named = Overrides(config=arguments.file)
    settings = load_settings(named.over(overrides_of(arguments)), note_mistakes)
    volumes, options = check_all(settings)
    limits = {name: effective_limits(chosen) for name, chosen in options.items()}
    write_json(settings.effective(limits))
    for storage, chosen in settings.cache.storages.items():
        volume = volumes[chosen.volume]
        say(f"{storage}: {', '.join(chosen.key_exprs)} -> {volume.backend.name}: {volume.place}")
    for name, pipe in settings.cache.pipes.items():
        say(f"pipe {name}: {pipe.key_expr}, {pipe.is_between}")
    for note in settings.notes():
        say(f"note: {note}")
    say("the configuration is good")
    return 0


def _translate(path: Path) -> int:
    """Print zenohd's file as one of ours; exit code 1 where a storage is not in it."""
    from durable_cache.service.config import read_settings
    from durable_cache.service.document import read_document
    from durable_cache.service.from_zenohd import translate_zenohd
    from durable_cache.service.strict import Mistakes

    document = read_document(path)
    try:
        made = translate_zenohd(document)
        if made.storages:
            read_settings(made.document)
    except Mistakes as error:
        raise Mistakes([f"{path}: {text}" for text in error.mistakes]) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if made.storages:
        write_json(made.document)
    for note in made.notes:
        say(f"note: {note}")
    for text in made.left_out:
        say(f"durable-cache: {text}")
    return 1 if made.left_out else 0
