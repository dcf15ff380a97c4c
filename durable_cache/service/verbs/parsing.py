"""How a command line is read: what is misspelt is named together with the nearest that exists."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from durable_cache.errors import ConfigError
from durable_cache.service.verbs import VERBS

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction["Parser"]
else:
    Verbs = argparse._SubParsersAction

_USAGE = 2
_NUMBERS = {"int": "whole number", "float": "number"}
_NUMBER_MAX = 10**9
"""Beyond it clocks and the system's own waits overflow; as seconds it is 30 years."""
_NUMBER_MIN = 1e-6
"""One in a million seconds, for whatever is counted per second."""
_NO_NUMBER = re.compile(r"invalid (int|float) value: (.*)")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?``, empty when nothing is near."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


@contextmanager
def in_words_of(options: Mapping[str, str]) -> Iterator[None]:
    """Let an error that begins with a setting's name begin with the option that sets it."""
    try:
        yield
    except ConfigError as error:
        name, colon, reason = str(error).partition(":")
        raise ConfigError(f"{options.get(name, name)}{colon}{reason}") from error


class _Help(argparse.HelpFormatter):
    """Wraps what is written for people; lines that are set in, commands, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        import textwrap

        return "\n".join(
            line
            if line.startswith(" ")
            else textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
            for line in text.splitlines()
        )


def _whole(text: str) -> int:
    return int(_bounded(text, int(text)))


def _number(text: str) -> float:
    number = float(text)
    if math.isnan(number) or 0 < abs(number) < _NUMBER_MIN:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number that can be counted with")
    return _bounded(text, number)


def _bounded(text: str, number: float) -> float:
    if abs(number) > _NUMBER_MAX:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is more than {_NUMBER_MAX}")
    return number


class Parser(argparse.ArgumentParser):
    """An argument parser that knows what was meant; options are never abbreviated.

    Numbers are finite and of a size that can be waited for and counted to.
    """

    def __init__(self, *, examples: Sequence[str] = (), **named: Any) -> None:
        self.examples = tuple(examples)
        if examples:
            named["epilog"] = "\n  ".join(("examples:", *examples))
        super().__init__(formatter_class=_Help, allow_abbrev=False, **named)
        self.register("type", int, _whole)
        self.register("type", float, _number)

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        """Parse as the parent does; an option nobody knows is an error of this very verb."""
        chosen, left = super().parse_known_args(*given, **named)
        if left and self._subparsers is None:
            word = left[0].partition("=")[0]
            if word.startswith("-"):
                self.error(f"{word}: unknown option{nearest(word, self._option_string_actions)}")
            self.error(f"{left[0]!r}: one argument too many; quote what holds spaces or wildcards")
        return chosen, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an empty text where a shell's variable was empty and everything would be meant."""
        if value == "" and action.option_strings and action.default is not None:
            raise argparse.ArgumentError(
                action, "an empty text says nothing; write a value, or leave the option out"
            )
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Say on one line what is wrong and where help is; exit code 2."""
        wrong = re.match(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong is not None:
            choices = [choice.strip("' ") for choice in wrong[3].split(",")]
            choices = [choice for choice in choices if choice]
            what = f"{wrong[1]}: " if wrong[1].startswith("-") else ""
            message = f"{what}{wrong[2]!r} is none of {', '.join(choices)}" + nearest(
                wrong[2], choices
            )
        message = self._missing(message.removeprefix("argument "))
        message = _NO_NUMBER.sub(lambda found: f"{found[2]} is no {_NUMBERS[found[1]]}", message)
        help_is = f"{self.prog} --help shows every option and examples"
        print(f"{self.prog}: {message}; {help_is}", file=sys.stderr)
        raise SystemExit(_USAGE)

    def _missing(self, message: str) -> str:
        """Return the message with an example where an argument is missing."""
        _, is_required, names = message.partition("the following arguments are required: ")
        if not is_required:
            return message
        if self._subparsers is not None:
            return f"name one of {', '.join(self._subparsers._group_actions[0].choices or ())}"
        example = f", as in: {self.examples[0]}" if self.examples else ""
        lacking = [name if name.startswith("-") else name.upper() for name in names.split(", ")]
        return f"{', '.join(lacking)} missing{example}"


def add_verb(verbs: Verbs, name: str, *, examples: Sequence[str], description: str = "") -> Parser:
    """Add a verb of the list; its help begins with its summary, or a longer `description`."""
    summary = VERBS[name].summary
    opening = description or f"{summary[0].upper()}{summary[1:]}."
    return verbs.add_parser(name, help=summary, description=opening, examples=examples)
