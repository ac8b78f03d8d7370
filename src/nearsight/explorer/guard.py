"""What every request passes first: the right host, the right token, a bounded body; and what every answer carries."""

from __future__ import annotations

import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "nearsight_token"
MAX_BODY = 10 * 2**20
TOO_LARGE = f"the file is larger than {MAX_BODY // 2**20} MB"
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


class BodyTooLargeError(Exception):
    """The body passed the cap while it was being read."""


class Guard:
    """ASGI middleware.

    `hosts`: names the Host header may have (a page elsewhere that resolves its own name to this machine is refused);
    None for any, where a token keeps such pages out.
    `token`: when given, every request must carry it, once as `?token=` (it becomes a cookie) or in that cookie.
    Requests that another site's page makes are refused by their Origin. Bodies are counted while they stream in.
    """

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str] | None, token: str | None) -> None:
        if hosts is None and not token:
            raise ValueError("a server that answers to any host name needs a token")
        self.app, self.hosts, self.token = app, hosts, token

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
        seen = 0

        async def counted_receive() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MAX_BODY:
                raise BodyTooLargeError
            return message

        try:
            await self.app(scope, counted_receive, send_with_headers)
        except BodyTooLargeError:
            await _error(413, TOO_LARGE)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope):
        headers = Headers(scope=scope)
        if self.hosts is not None and _host_name(headers.get("host", "")) not in self.hosts:
            return _error(400, "this server does not answer to that host name")
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != headers.get("host"):
            return _error(403, "requests from other sites are refused")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return _error(413, TOO_LARGE)
        return None if self.token is None else self._token_refusal(scope, headers)

    def _token_refusal(self, scope: Scope, headers: Headers):
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if asked and self._is_token(asked):
            answer = RedirectResponse(scope["path"], status_code=303)
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
    return JSONResponse({"error": message}, status_code=status)


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
