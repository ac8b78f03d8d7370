"""HTTP connections that a hostile client cannot keep from others: each wait has an end, and the idlest gives way.

uvicorn's `limit_concurrency` counts connections that have sent nothing, so that a few dozen silent ones would have it
answer 503 to everybody. Here a connection that asks for nothing may stay for a while only, and when there are too many,
the one that has been idle longest is closed, never one that is being answered or has just been opened.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS, CROWD = 256, 768
"""Above the first, a new connection closes the idlest that has had its time; above the second, the idlest anyhow."""
GRACE_SECONDS = 1.0
"""Before a connection counts as idle: the request of one that has just been opened lies unread for a moment."""
HEADER_SECONDS = 10.0
"""From the opening of a connection to the end of its first request's header."""
KEEP_ALIVE_SECONDS = 30
"""Between requests, before the next one begins; its header then has as long as the first one's."""
UNREAD_SECONDS = 20.0
"""How long an answer may wait for a client that does not read it."""
LINGER_SECONDS, LINGER_BYTES = 2.0, 10 * 2**20
"""What is still taken, and thrown away, of a body that was answered before its end: a browser reads the answer then."""


class PatientProtocol(H11Protocol):
    """One connection. What it waits for has a time limit: a request's header, the end of a body, a slow reader."""

    _limit: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _lingered: int | None = None  # bytes of a body that was answered already; None where there is none
    idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEADER_SECONDS)
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingered is not None:
            self._lingered += len(data)
            if self._lingered > LINGER_BYTES:
                self.transport.abort()
                return
        super().data_received(data)
        if self._lingered is not None and self.conn.their_state is not h11.SEND_BODY:
            self._lingered = None  # all of it has come
            self._wait(HEADER_SECONDS)
        if self.is_answering:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._lingered = 0
            self._wait(LINGER_SECONDS)
        elif not self.is_answering:  # else the next request had come already
            self._wait(KEEP_ALIVE_SECONDS + HEADER_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    @property
    def is_answering(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self.idle_since = self.loop.time()
        self._limit = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _make_room(self) -> None:
        idle = [one for one in self.connections if isinstance(one, PatientProtocol) and not one.is_answering]
        longest = min(idle, key=lambda one: one.idle_since, default=self)
        if len(self.connections) > CROWD or self.loop.time() - longest.idle_since > GRACE_SECONDS:
            self.connections.discard(longest)  # now, not when the event loop gets to it: others may be let in before
            longest.transport.abort()


def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Serve until Ctrl+C, which is raised again when the server has stopped in good order."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * CROWD:  # each connection is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * CROWD, hard), hard))
    options: dict[str, Any] = {"access_log": False, "log_level": "error", "ws": "none"}
    config = uvicorn.Config(app, http=PatientProtocol, timeout_keep_alive=KEEP_ALIVE_SECONDS, **options)
    uvicorn.Server(config).run(sockets=[listener])
