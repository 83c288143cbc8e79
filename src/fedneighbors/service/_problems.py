"""Errors as answers of the REST API (RFC 9457)."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from fedneighbors.errors import (
    BudgetExceeded,
    FedneighborsError,
    LedgerError,
    MissingExtraError,
    PartyMissing,
    PartyRefused,
)
from fedneighbors.methods.fedknn._provider import FEW_FILTERED, INVALID_QUERY, SOURCE_FAILED
from fedneighbors.methods.fedknn._radius import TooManyObjects
from fedneighbors.methods.fedknn.metrics._sessions import LATE
from fedneighbors.service._access_log import LOG_FAILED, LogFailed
from fedneighbors.service._limits import Overloaded, TooManyQueries
from fedneighbors.service._links import QueryLost
from fedneighbors.service._messages import UNKNOWN_QUERY
from fedneighbors.service._oidc import IssuerFailed
from fedneighbors.service._policy import (
    FEW_APART,
    FEW_ASKED,
    NOT_ALLOWED,
    OTHER_PURPOSE,
    QUOTA_SPENT,
    SEEN_OFTEN,
)
from fedneighbors.service._query_budget import BUDGET_SPENT, LEDGER_FAILED
from fedneighbors.service._sealed_party import ISSUER_FAILED, WRONG_KEY, WRONG_TOKEN
from fedneighbors.service._state import StateFailed
from fedneighbors.service._voter import MODEL_FAILED

log = logging.getLogger(__name__)
PROBLEM_TYPE = "application/problem+json"

RETRYABLE = (429, 503, 504)
"""Status codes of failures that may pass."""

_REFUSALS = {
    INVALID_QUERY: (422, "invalid-query"),
    WRONG_KEY: (422, "wrong-key"),
    WRONG_TOKEN: (403, "wrong-token"),
    FEW_FILTERED: (403, "few-filtered"),
    FEW_APART: (403, "few-filtered"),
    NOT_ALLOWED: (403, "not-allowed"),
    OTHER_PURPOSE: (403, "purpose-refused"),
    FEW_ASKED: (403, "few-asked"),
    BUDGET_SPENT: (403, "budget-exceeded"),
    QUOTA_SPENT: (429, "quota-spent"),
    SEEN_OFTEN: (429, "quota-spent"),
    ISSUER_FAILED: (503, "issuer-failed"),
    LOG_FAILED: (503, "log-failed"),
    LEDGER_FAILED: (503, "ledger-failed"),
    SOURCE_FAILED: (503, "source-failed"),
    MODEL_FAILED: (502, "model-failed"),
    UNKNOWN_QUERY: (503, "provider-restarted"),
    LATE: (504, "deadline-passed"),
}
"""Status and code of the problem for each refusal of a provider."""

QUERY_ERRORS = (FedneighborsError, ValueError, TypeError, ArithmeticError, RecursionError)
"""Errors of a query that have a problem."""


class Problem(Exception):  # noqa: N818 - an answer, as in RFC 9457
    """An answer with an error, as in RFC 9457.

    Parameters
    ----------
    status : int
        Status code of HTTP.
    code : str
        Stable code of the error.
    detail : str
        Sentence for people.
    **fields
        Further fields of the answer.
    """

    def __init__(self, status: int, code: str, detail: str, **fields: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.content: dict[str, Any] = {
            "type": "about:blank",
            "status": status,
            "code": code,
            "detail": detail,
            "party": None,
            "retryable": False,
            "query_id": None,
            **fields,
        }

    def response(self) -> Response:
        """Return the response."""
        return make_response(self.content, self.status)


def make_response(
    content: Mapping[str, Any] | bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with JSON; a problem by its status."""
    encoded = content if isinstance(content, bytes) else encode_json(content)
    headers = dict(headers or {})
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in RETRYABLE:
        headers["Retry-After"] = "1"
    media_type = "application/json" if status < 400 else PROBLEM_TYPE
    return Response(encoded, status, headers=headers, media_type=media_type)


def encode_json(content: Any) -> bytes:
    """Return the bytes of compact JSON."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def report_internal(error: Exception, query_id: str | None = None) -> Problem:
    """Log an unexpected error; return a problem without its text."""
    log.error("a request failed with %s", type(error).__name__, exc_info=error)
    return Problem(500, "internal", "the broker failed; its log has the cause", query_id=query_id)


def problem_of(error: Exception, query_id: str | None = None) -> Problem:
    """Return the problem of an error of a query."""
    fields: dict[str, Any] = {"query_id": query_id}
    later = {**fields, "retryable": True}
    match error:
        case Problem():
            return error
        case TooManyQueries():
            return Problem(429, "too-many-queries", str(error), **later)
        case Overloaded():
            return Problem(503, "overloaded", str(error), **later)
        case IssuerFailed():
            return Problem(503, "issuer-failed", str(error), **later)
        case QueryLost():
            return Problem(503, "provider-restarted", str(error), **later, party=error.party)
        case PartyMissing():
            names = ", ".join(f"{name} ({why})" for name, why in sorted(error.missing.items()))
            detail = f"no answer from provider {names}: search again later, or allow an answer "
            detail += "without missing providers (allow_partial)"
            later |= {"party": next(iter(error.missing), None), "missing": error.missing}
            return Problem(503, "provider-missing", detail, **later)
        case PartyRefused():
            return _problem_of_refusal(error, query_id)
        case BudgetExceeded():
            return Problem(403, "budget-exceeded", str(error), **fields, party=error.dataset)
        case LogFailed():
            return Problem(503, "log-failed", "the broker cannot write its log", **later)
        case StateFailed():
            return Problem(503, "state-failed", "the broker cannot use its state", **later)
        case LedgerError():
            return Problem(503, "ledger-failed", str(error), **later)
        case MissingExtraError():
            return Problem(501, "not-installed", str(error), **fields)
        case TooManyObjects():
            n_objects = error.n_objects
            return Problem(422, "too-many-objects", str(error), **fields, n_objects=n_objects)
        case ValueError() | TypeError() | ArithmeticError() | RecursionError():
            return Problem(422, "invalid-query", str(error), **fields)
        case FedneighborsError():
            return Problem(502, "provider-failed", str(error), **fields)
    raise error


def _problem_of_refusal(error: PartyRefused, query_id: str | None) -> Problem:
    """Return the problem of a provider's refusal."""
    status, code = _REFUSALS.get(error.code, (502, "provider-refused"))
    detail = error.code if error.code == INVALID_QUERY else str(error)
    is_retryable = status in (503, 504)
    return Problem(
        status, code, detail, query_id=query_id, party=error.party, retryable=is_retryable
    )
