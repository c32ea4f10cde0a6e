"""A server that reads an upload and acknowledges it, and does nothing else: a ceiling.

It is Starlette on uvicorn with uvloop and httptools, as `rmab server` is, and takes its arguments;
see `service`.
"""

from __future__ import annotations

import json
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def acknowledge(request: Request) -> Response:
    """201, once the body is there."""
    await request.body()
    return Response(b"{}", 201, media_type="application/json")


def main() -> int:
    """Serve on a port of the loopback that is free, and say which."""
    app = Starlette(routes=[Route("/v1/uploads", acknowledge, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", log_level="warning", access_log=False
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
