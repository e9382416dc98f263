"""Who may talk to the viewer: the page that it served, in this machine's browser, and nobody else.

The server listens on loopback only. Other sites that the browser shows can still send requests there, under this address or
under a name of theirs that points to it; so every request has to name the right host, carry the token of this start, and
come from the page itself.
"""

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SMALL_BODY = 256_000  # bytes of a request, other than a file
LARGEST_FILE = 64_000_000

HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
]


@dataclass(frozen=True)
class Guard:
    """Wraps the application; refuses before anything of it runs."""

    app: Callable[[Scope, Receive, Send], Awaitable[None]]
    port: int
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        refusal = self.refusal(scope)
        if refusal is not None:
            status, reason = refusal
            return await JSONResponse({"error": reason}, status)(scope, receive, send_guarded)
        return await self.app(scope, self._limited(scope, receive), send_guarded)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason, or None where the request may pass."""
        if scope["type"] != "http":
            return 403, "only plain requests are answered"
        headers, query = Headers(scope=scope), QueryParams(scope["query_string"])
        if headers.get("host") not in {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}:
            return 421, "this server answers to 127.0.0.1 only"
        if headers.get("origin") not in {None, f"http://{headers['host']}"}:
            return 403, "another site may not ask"
        if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            return 403, "another site may not ask"
        given = query.get("token", "") if scope["path"] == "/" else headers.get("x-lens-token", "")
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return 403, "the address needs the token that `loopcd lens` printed when it started"
        length = headers.get("content-length")
        if length is not None and (not length.isdigit() or int(length) > largest(scope)):
            return 413, too_large(scope)
        return None

    @staticmethod
    def _limited(scope: Scope, receive: Receive) -> Receive:
        """A body that does not say its length is counted as it comes."""
        seen = 0

        async def receive_counted() -> MutableMapping[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > largest(scope):
                raise TooLarge(too_large(scope))
            return message

        return receive_counted


class TooLarge(Exception):
    """A body went over its limit."""


def largest(scope: Scope) -> int:
    return LARGEST_FILE if scope["path"] == "/api/files" else SMALL_BODY


def too_large(scope: Scope) -> str:
    return f"too large: at most {largest(scope) / 1e6:g} MB"
