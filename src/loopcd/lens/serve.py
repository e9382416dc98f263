"""Start and stop the viewer's server, on loopback only."""

import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

from loopcd.lens.guard import new_token
from loopcd.lens.server import Viewer, application

HOST = "127.0.0.1"


def prepare(viewer: Viewer, port: int = 0) -> tuple[Any, socket.socket, str]:
    """A uvicorn server that does not run yet, its socket, and the address, which holds a fresh token. Port 0: a free one."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            viewer.ending.set()  # what the model is at does not hold up the end
            super().handle_exit(sig, frame)

    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise ValueError(f"--port {port}: {error.strerror}") from error
    taken, token = listener.getsockname()[1], new_token()
    config = uvicorn.Config(
        application(viewer, taken, token),
        lifespan="off",
        log_level="warning",
        access_log=False,  # it would hold the token
        server_header=False,
        timeout_graceful_shutdown=1,  # a page that reads a stream does not hold up the end
    )
    return Server(config), listener, f"http://{HOST}:{taken}/?token={token}"


def serve(viewer: Viewer, port: int = 0, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve until interrupted; `started` is called with the address."""
    server, listener, address = prepare(viewer, port)
    started(address)
    server.run(sockets=[listener])
