"""How a service's log is written: as lines for people or as JSON, on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from durable_cache.service.masking import mask_text

CHANGES = "durable_cache.service.changes"
"""The logger of what changes; its INFO is shown where other rooms' is not."""
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class _Lines(logging.Formatter):
    """One line a record: the sentence, then what it is about."""

    def format(self, record: logging.LogRecord) -> str:
        shown = (f"{name}={mask_text(str(value))}" for name, value in _about(record).items())
        return " ".join((super().format(record), *shown))


class _Json(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_text(record.getMessage()),
            **{name: _plain(value) for name, value in _about(record).items()},
        }
        if record.exc_info:
            values["traceback"] = mask_text(self.formatException(record.exc_info))
        return json.dumps(values, ensure_ascii=False)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return mask_text(str(value))


def _about(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def write_log(level: str, form: str) -> None:
    """Write what all loggers say from `level` on; `form` is ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Json() if form == "json" else _Lines("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(handlers=[handler], level=level.upper())
    if level == "warning":
        logging.getLogger(CHANGES).setLevel(logging.INFO)
