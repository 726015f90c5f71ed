"""Makes a port of this machine reachable at 127.0.0.1 in a network namespace, through a Unix socket.

usage: port_bridge.py serve|reach SOCKET PORT     (serve: where the port is; reach: in the namespace)
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(side: str, path: str, port: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other = await (
                asyncio.open_connection("127.0.0.1", port) if side == "serve" else asyncio.open_unix_connection(path)
            )
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, other[1]), pump(other[0], writer))

    server = await (
        asyncio.start_unix_server(connect, path)
        if side == "serve"
        else asyncio.start_server(connect, "127.0.0.1", port)
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
