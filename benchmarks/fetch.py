"""How many small pictures a second does `mufin fetch-images` bring from a server on this machine?

    python benchmarks/fetch.py [--pictures 4000]

A server in a process of its own gives WebP pictures of 96 px, each another; the catalogue is Parquet. Prints
a table: all of `fetch_folder` (downloads, checks, files, journal, the table afterwards) with several numbers
of downloads at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from mufin.data.formats import parquet
from mufin.fetch.catalogue import fetch_folder
from mufin.fetch.settings import Settings

DIFFERENT = 500  # pictures that are made; the others differ in a few bytes at their end


def pictures() -> list[bytes]:
    """Coloured noise, smoothed: a few kB each."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(DIFFERENT):
        small = Image.fromarray(rng.integers(0, 255, (12, 12, 3), np.uint8)).resize((96, 96))
        buffer = io.BytesIO()
        small.save(buffer, "WEBP", quality=80)
        made.append(buffer.getvalue())
    return made


def serve(pipe: Connection) -> None:
    """A keep-alive server that answers every GET with the picture of its number."""
    made = pictures()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                number = int(head.split(b" ", 2)[1].strip(b"/"))
                body = made[number % DIFFERENT] + number.to_bytes(4, "big")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    asyncio.run(run())


def measure(port: int, count: int, workers: int) -> tuple[float, float]:
    """Pictures a second, by the clock and by the processor time of this process."""
    with tempfile.TemporaryDirectory() as temporary:
        urls = [[f"http://127.0.0.1:{port}/{i}"] for i in range(count)]
        table = pa.table({"id": [str(i) for i in range(count)], "texts": [["x"]] * count, "image_urls": urls})
        parquet.write([table], Path(temporary) / "items.parquet")
        settings = Settings(workers=workers, per_host=workers, allow_private=True)
        start, cpu = time.perf_counter(), time.process_time()
        done = fetch_folder(Path(temporary), settings)
        assert done.fetched == count, done
        return count / (time.perf_counter() - start), count / (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pictures", type=int, default=4000)
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    size = sum(map(len, pictures())) / DIFFERENT
    print(f"{args.pictures:,} pictures of {size / 1000:.1f} kB, 96 px, WebP\n")
    print("| downloads at a time | pictures/s | pictures/s of processor time |\n|---|---|---|")
    for workers in (1, 8, 32):
        speed, pure = measure(port, args.pictures, workers)
        print(f"| {workers} | {speed:,.0f} | {pure:,.0f} |", flush=True)
    server.terminate()


if __name__ == "__main__":
    main()
