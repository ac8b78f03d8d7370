"""What every request passes first: the right host, the right token, a body that is small and comes in time.

And what every answer carries.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "nearsight_token"
BODY_SECONDS = 30.0
"""For a whole body."""
STALL_SECONDS = 5.0
"""Between two pieces of a body."""
MAX_QUESTION = 16 * 2**10
"""The largest body of a request that is no upload."""
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_every_address(host: str) -> bool:
    """0.0.0.0 and ::, which stand for all addresses of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


class RefusedBodyError(Exception):
    """The body passed the cap, or came too slowly, while it was being read: an HTTP status and what is said of it."""


class Guard:
    """ASGI middleware.

    `hosts`: names the Host header may have (a page elsewhere that resolves its own name to this machine is refused);
    None for any, where a token keeps such pages out.
    `token`: when given, every request must carry it, once as `?token=` (it becomes a cookie) or in that cookie.
    `uploads`: paths to which files may be posted, each with the most bytes. Other bodies are questions, and short.
    Requests that another site's page makes are refused by their Origin. Bodies are counted, and timed, while they
    stream in; a request that has none by its method is not given one.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: frozenset[str] | None, token: str | None, uploads: Mapping[str, int]
    ) -> None:
        if hosts is None and not token:
            raise ValueError("a server that answers to any host name needs a token")
        self.app, self.hosts, self.token, self.uploads = app, hosts, token, uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        try:
            await self.app(scope, self._guarded(scope, receive), send_with_headers)
        except RefusedBodyError as refused:
            await _error(*refused.args)(scope, receive, send_with_headers)
        except ClientDisconnect:  # within a body: there is nobody to answer
            return

    def _guarded(self, scope: Scope, receive: Receive) -> Receive:
        """`receive`, which counts the body and looks at the clock until all of it is there."""
        seen, whole, most = 0, False, self._most(scope)
        clock = asyncio.get_running_loop().time
        end = clock() + BODY_SECONDS

        async def guarded() -> Message:
            nonlocal seen, whole
            if whole:  # what comes now is the end of the connection, for which there is no hurry
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), min(STALL_SECONDS, end - clock()))
            except asyncio.TimeoutError:
                raise RefusedBodyError(408, "the file arrived too slowly") from None
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > most:
                raise RefusedBodyError(413, _too_large(most))
            return message

        return guarded

    def _most(self, scope: Scope) -> int:
        """How long the body of a request may be."""
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return 0
        return self.uploads.get(scope["path"], MAX_QUESTION)

    def _refusal(self, scope: Scope):
        headers = Headers(scope=scope)
        if self.hosts is not None and _host_name(headers.get("host", "")) not in self.hosts:
            return _error(400, "this server does not answer to that host name")
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != headers.get("host"):
            return _error(403, "requests from other sites are refused")
        length, most = headers.get("content-length", "0"), self._most(scope)
        if not length.isdecimal() or len(length) > 20 or int(length) > most:
            return _error(413, _too_large(most))
        if not most and "transfer-encoding" in headers:
            return _error(413, _too_large(most))
        return None if self.token is None else self._token_refusal(scope, headers)

    def _token_refusal(self, scope: Scope, headers: Headers):
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if asked and self._is_token(asked):
            answer = RedirectResponse("/", status_code=303)  # not to the path that was asked for: //elsewhere is one
            answer.set_cookie(COOKIE, asked, httponly=True, samesite="strict")
            return answer
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        if cookie is not None and self._is_token(cookie.value):
            return None
        return _error(403, "open the address that was printed when the explorer was started: it carries a token")

    def _is_token(self, value: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(value.encode(), self.token.encode())


def _error(status: int, message: str) -> JSONResponse:
    """A refusal ends the connection: what else was to come of the request is not read."""
    return JSONResponse({"error": message}, status_code=status, headers={"connection": "close"})


def _too_large(most: int) -> str:
    if not most:
        return "this request has no body"
    return (
        f"the file is larger than {most // 2**20} MB" if most >= 2**20 else f"the request is longer than {most} bytes"
    )


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
