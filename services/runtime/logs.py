"""Structured logs: one event a line on standard error, JSON for machines or text for people."""

from __future__ import annotations

import logging
import sys

import structlog

from services.runtime.tracing import request_id


def configure(service: str, level: str, form: str) -> structlog.stdlib.BoundLogger:
    """Sets up structlog and the standard library's logging for this process; returns the service's logger."""
    shared: list[structlog.typing.Processor] = [
        _add_request_id,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    # Plain tracebacks: the rich ones print local variables, secrets among them.
    text = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer() if form == "json" else text
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    return logger(service)


def _add_request_id(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    if given := request_id():
        event["request_id"] = given
    return event


def logger(service: str) -> structlog.stdlib.BoundLogger:
    """The logger of a service; it writes through the standard library's logging."""
    bound: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(service).bind(service=service)
    return bound
