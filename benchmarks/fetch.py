"""Measure how many small images per second `mufin fetch-images` downloads from a local server.

    python benchmarks/fetch.py [--images 4000]

A server in a separate process returns distinct WebP images of 96 px; the catalogue is Parquet. Times all of
`fetch_folder` (downloads, checks, files, journal, final table) for several numbers of parallel downloads.
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

from mufin.data.download.addresses import Settings
from mufin.data.download.catalogue import fetch_folder
from mufin.data.formats import parquet

DISTINCT_IMAGES = 500  # the others differ from these in a few trailing bytes


def noise_images() -> list[bytes]:
    """Smoothed coloured noise, a few kB each."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(DISTINCT_IMAGES):
        small = Image.fromarray(rng.integers(0, 255, (12, 12, 3), np.uint8)).resize((96, 96))
        buffer = io.BytesIO()
        small.save(buffer, "WEBP", quality=80)
        made.append(buffer.getvalue())
    return made


def serve(pipe: Connection) -> None:
    """A keep-alive server that returns image N for GET /N."""
    made = noise_images()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                number = int(head.split(b" ", 2)[1].strip(b"/"))
                body = made[number % DISTINCT_IMAGES] + number.to_bytes(4, "big")
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
    """Images per second of wall time and of CPU time of this process."""
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
    parser.add_argument("--images", type=int, default=4000)
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    size = sum(map(len, noise_images())) / DISTINCT_IMAGES
    print(f"{args.images:,} images of {size / 1000:.1f} kB, 96 px, WebP\n")
    print("| parallel downloads | images/s | images/s of CPU time |\n|---|---|---|")
    for workers in (1, 8, 32):
        speed, pure = measure(port, args.images, workers)
        print(f"| {workers} | {speed:,.0f} | {pure:,.0f} |", flush=True)
    server.terminate()


if __name__ == "__main__":
    main()
