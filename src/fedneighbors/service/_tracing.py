"""Traces of queries for OpenTelemetry, if its API is installed.

Attributes of spans are names of collections, providers and requests, and the id of the query: no
contents, users, ids of objects, counts or distances. Exceptions are named by their class alone,
because their texts may quote a query.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedneighbors._version import __version__

try:
    from opentelemetry import trace

    tracer: Any = trace.get_tracer("fedneighbors", __version__)
except ModuleNotFoundError:
    tracer = None


def _is_on() -> bool:
    """Return whether the program has set a provider of tracers."""
    if tracer is not None and isinstance(tracer, trace.ProxyTracer):
        return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return tracer is not None


_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])")  # W3C's header traceparent


@contextmanager
def trace_work(name: str, **attributes: str) -> Iterator[None]:
    """Record a span of the block, within the present span."""
    if not _is_on():
        yield
        return
    with tracer.start_as_current_span(
        f"fedneighbors.{name}",
        attributes=_name_attributes(attributes),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.StatusCode.ERROR)
            raise


def read_parent() -> str:
    """Return the present span for others, or an empty text."""
    found = None if not _is_on() else trace.get_current_span().get_span_context()
    if found is None or not found.is_valid:
        return ""
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags.sampled):02x}"


def record_span(
    name: str, started: int, ended: int | None = None, *, parent: str, **attributes: str
) -> None:
    """Record a span that has ended.

    Parameters
    ----------
    name : str
        Name of the span.
    started, ended : int
        Nanoseconds since 1970; ``ended`` is now by default.
    parent : str
        Result of :func:`read_parent`, possibly of another process. Anything else is ignored.
    **attributes
        Names.
    """
    if not _is_on():
        return
    context, found = None, _PARENT.fullmatch(parent)
    if found is not None:
        identity, span_id, flags = (int(part, 16) for part in found.groups())
        remote = trace.SpanContext(identity, span_id, True, trace.TraceFlags(flags))
        context = trace.set_span_in_context(trace.NonRecordingSpan(remote))
    span = tracer.start_span(
        f"fedneighbors.{name}",
        context,
        attributes=_name_attributes(attributes),
        start_time=started,
    )
    if "error" in attributes:
        span.set_status(trace.StatusCode.ERROR)
    span.end(time.time_ns() if ended is None else ended)


def _name_attributes(attributes: dict[str, str]) -> dict[str, str]:
    return {
        "error.type" if name == "error" else f"fedneighbors.{name}": value
        for name, value in attributes.items()
    }
