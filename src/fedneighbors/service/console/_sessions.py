"""Sessions of browsers: a cookie in place of a bearer token, and tokens against forged requests."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

IDLE_S, ABSOLUTE_S = 1800.0, 43_200.0
"""Seconds after which a session ends: without a request, and in any case."""

MAX_SESSIONS = 10_000
"""Maximum number of sessions; the one that was used longest ago ends first."""


@dataclass
class _Session:
    token: str
    begun: float
    used: float


class Sessions:
    """Sessions in memory, by digests of their random ids.

    A session keeps the bearer token of its user, which is checked again at each request: a token
    that was deleted or has expired ends the session.

    Parameters
    ----------
    clock : callable
        Returns seconds; they never go backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._key = clock, secrets.token_bytes(32)
        self._sessions: dict[bytes, _Session] = {}  # used longest ago first

    def begin(self, token: str) -> str:
        """Begin the session of a bearer token; return its id."""
        session_id, now = secrets.token_urlsafe(32), self._clock()
        for key, one in list(self._sessions.items()):
            if self._is_over(one, now):
                del self._sessions[key]
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[_hash(session_id)] = _Session(token, now, now)
        return session_id

    def find_token(self, session_id: str) -> str | None:
        """Return the bearer token of an open session, or None."""
        key, now = _hash(session_id), self._clock()
        session = self._sessions.pop(key, None)
        if session is None or self._is_over(session, now):
            return None
        session.used = now
        self._sessions[key] = session
        return session.token

    def end(self, session_id: str) -> None:
        """End a session."""
        self._sessions.pop(_hash(session_id), None)

    def form_token(self, session_id: str) -> str:
        """Return the secret that all forms of a session contain."""
        return hmac.new(self._key, session_id.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, session_id: str, token: str) -> bool:
        """Return whether a form was made for a session."""
        return hmac.compare_digest(self.form_token(session_id).encode(), token.encode())

    def _is_over(self, session: _Session, now: float) -> bool:
        return now - session.used >= IDLE_S or now - session.begun >= ABSOLUTE_S


def _hash(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()
