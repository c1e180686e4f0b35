"""Logs for people or for machines: one line for each event, and never what anybody wrote."""

from __future__ import annotations

import json
import logging
import sys
import time

from minserve.errors import ConfigError

FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """A JSON object a line: time (UTC), level, logger, event, and the record's own `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """The same for a terminal: the event, then its fields as `name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        return " ".join([super().format(record), *(f"{n}={v}" for n, v in fields.items())])


def set_up(kind: str, level: str = "info") -> None:
    """Send what minserve and uvicorn log to standard error. Raises `ConfigError`."""
    if kind not in FORMATS:
        raise ConfigError(f"log format {kind!r}", f"use {' or '.join(FORMATS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else TextLines())
    for name, least in (("minserve", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)
