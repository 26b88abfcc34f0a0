"""Only images in formats that we name are decoded, from regular files, within bounds of bytes and memory."""

from __future__ import annotations

import io
import os
import re
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

import mufin
from mufin.data import decoding, images
from mufin.data.catalogue import Catalogue
from mufin.data.check import check
from mufin.data.decoding import (
    FORMATS,
    MAX_FILE_BYTES,
    MAX_IMAGE_MEMORY,
    Budget,
    decoding_memory,
    open_encoded,
    read_file,
)
from mufin.data.images import load_pixels, open_picture
from mufin.data.loading import loaded
from mufin.encode.cache import key
from mufin.errors import PictureError

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"
PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")


def save(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def noise(mode: str, size: tuple[int, int] = (61, 47)) -> Image.Image:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (*size[::-1], 4), np.uint8), "RGBA")
    match mode:
        case "I;16":
            return Image.fromarray(rng.integers(0, 65535, size[::-1], np.uint16))
        case "I" | "F":
            values = rng.integers(-5, 60_000, size[::-1])
            return Image.fromarray(values.astype(np.int32 if mode == "I" else np.float32))
        case "P":
            return image.convert("RGB").quantize(16)
    return image.convert(mode)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int, depth: int, colour: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")


def tiff(tile: int) -> bytes:
    """A TIFF of 64 × 64 grey pixels whose header promises larger tiles."""
    tags = [(256, 64), (257, 64), (258, 8), (259, 8), (262, 1), (277, 1)]
    tags += [(322, tile), (323, tile), (324, 8), (325, 0)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\x00" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)


@pytest.mark.parametrize("format", FORMATS)
def test_formats_that_we_name_are_decoded(format: str) -> None:
    assert open_picture(save(noise("RGB"), format)).size == (61, 47)


@pytest.mark.parametrize("format", ["PPM", "TGA", "PCX", "ICO", "SGI", "JPEG2000"])
def test_other_formats_are_refused(format: str) -> None:
    with pytest.raises(PictureError, match="not an image in a supported format; save it as PNG"):
        open_picture(save(noise("RGB"), format))


def test_a_catalogue_does_not_start_ghostscript(
    folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ghostscript.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # look for it again
    path = folder(items=[{"id": "a", "title": "A", "images": ["a.png"]}])
    (path / "a.png").write_bytes(EPS)
    assert any("not an image in a supported format" in one.message for one in check(path).problems)
    assert not (tmp_path / "started").exists()


def test_pillow_opens_images_in_one_place() -> None:
    source = Path(mufin.__file__).parent
    found = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for _ in re.finditer(r"\bImage\.open\(|\bImageFile\.", path.read_text("utf-8"))
    ]
    assert found == ["data/decoding.py"]


def within(seconds: float, call: Callable[[], object]) -> object:
    """What the call returns or raises; a failure where it takes longer."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except PictureError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, f"nothing within {seconds} s"
    return outcome[0]


@PIPES
def test_a_pipe_is_not_waited_for(folder: Callable[..., Path]) -> None:
    path = folder(items=[{"id": "a", "title": "A", "images": ["a.png"]}])
    os.mkfifo(path / "a.png")
    assert "a device or a pipe, not a file" in str(within(30, lambda: open_picture(path / "a.png")))
    assert isinstance(within(30, lambda: key(path / "a.png")), int)
    within(30, lambda: check(path))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_an_endless_device_is_not_read() -> None:
    assert "a device or a pipe, not a file" in str(within(30, lambda: read_file("/dev/zero")))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # a hole: it takes no room on disk
    with pytest.raises(PictureError, match=r"a\.png: 67,108,865 bytes, more than 67,108,864; make the image"):
        open_picture(tmp_path / "a.png")


def test_compressed_texts_in_a_png_are_bounded() -> None:
    text = b"Comment\x00\x00" + zlib.compress(bytes(20 << 20))
    raw = save(noise("L"), "PNG")
    with pytest.raises(PictureError, match="too large"):
        open_picture(raw[:33] + chunk(b"zTXt", text) + raw[33:])


@pytest.mark.parametrize("format", ["TIFF", "WEBP", "GIF"])
def test_only_the_first_frame_is_decoded(format: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    raw = save(frames[0], format, save_all=True, append_images=frames[1:])
    red, green, blue = np.asarray(open_picture(raw))[4, 4]
    assert (red > 250, green < 5, blue < 5) == (True, True, True)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_strips_change_no_pixel(mode: str, orientation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = save(noise(mode), "TIFF" if mode in ("CMYK", "I", "F") else "PNG", exif=exif)
    whole = open_picture(raw)
    monkeypatch.setattr(images, "STRIP_PIXELS", 200)
    assert np.array_equal(np.asarray(open_picture(raw)), np.asarray(whole))
    assert len(np.unique(np.asarray(whole))) > 1


def test_transparency_that_is_a_colour_survives_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = save(noise("P"), "PNG", transparency=3)
    whole = open_picture(raw)
    monkeypatch.setattr(images, "STRIP_PIXELS", 200)
    assert np.array_equal(np.asarray(open_picture(raw)), np.asarray(whole))


def plain_pixels(encoded: bytes, size: int) -> np.ndarray:
    """`load_pixels` in the plainest words, with no thought of memory."""
    image = Image.open(io.BytesIO(encoded))
    if image.format == "JPEG":
        image.draft("RGB", (size, size))
    image = ImageOps.exif_transpose(image)
    if "A" in image.getbands() or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = image.convert("RGB")
    width, height = (max(1, round(side * size / max(image.size))) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    canvas = Image.new("RGB", (size, size), "white")
    canvas.paste(image, ((size - width) // 2, (size - height) // 2))
    return np.array(canvas)


def test_pixels_of_the_demo_are_those_of_the_plain_recipe() -> None:
    pictures = Catalogue.demo().items.flat_images()[1]
    some = pictures[::97]
    for encoded, pixels in zip(some, loaded(some, 64), strict=True):
        assert isinstance(encoded, bytes)
        assert isinstance(pixels, np.ndarray)
        assert np.array_equal(pixels, plain_pixels(encoded, 64))
        assert np.array_equal(pixels, load_pixels(encoded, 64))


@pytest.mark.parametrize(
    ("depth", "colour"),
    [(8, 2), (8, 6), (8, 0), (8, 3), (16, 2)],
    ids=["RGB", "RGBA", "L", "P", "RGB 16 bit"],
)
def test_a_photo_of_48_megapixels_fits(depth: int, colour: int) -> None:
    assert decoding_memory(open_encoded(png_header(8000, 6000, depth, colour))) <= MAX_IMAGE_MEMORY


def test_an_image_that_takes_too_much_memory_is_refused_undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_IMAGE_MEMORY", 8 << 20)
    with pytest.raises(PictureError, match=r"2000 × 1000 pixels \(PNG, RGB\) take 15 MiB .* more than 8"):
        open_picture(png_header(2000, 1000, 8, 2))
    photo = save(Image.new("RGB", (2000, 1000)), "JPEG")
    assert open_picture(photo, 100).size == (250, 125)  # decoded at an eighth
    with pytest.raises(PictureError, match="make it smaller"):
        open_picture(photo)
    with pytest.raises(PictureError, match="make it smaller"):  # the decoder keeps all of it, at any size
        open_picture(save(Image.new("RGB", (2000, 1000)), "JPEG", progressive=True), 100)


def test_a_tiff_does_not_hide_its_memory_in_tiles() -> None:
    raw = tiff(tile=1 << 15)
    with pytest.raises(PictureError, match=r"64 × 64 pixels \(TIFF, L\) take 8,192 MiB to decode"):
        open_picture(raw)
    assert decoding_memory(open_encoded(tiff(tile=64))) < 1 << 20


PEAK = """
import resource, sys
from mufin.data.images import scaled
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
scaled(open(sys.argv[1], "rb").read(), 224)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux only")
@pytest.mark.parametrize(("format", "mode"), [("PNG", "I;16"), ("PNG", "RGBA"), ("WEBP", "RGBA")])
def test_decoding_takes_no_more_memory_than_foreseen(format: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    image = Image.new(mode, (5000, 3000))
    path.write_bytes(save(image, format))
    told = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, check=True, text=True)
    assert int(told.stdout) << 10 <= decoding_memory(open_encoded(path.read_bytes())) + (48 << 20)


def test_threads_share_a_budget() -> None:
    budget = Budget(100)
    lock, used, most = threading.Lock(), 0, 0

    def work(need: int) -> None:
        nonlocal used, most
        for _ in range(50):
            with budget.spend(need):
                with lock:
                    used += min(need, 100)
                    most = max(most, used)
                with lock:
                    used -= min(need, 100)

    threads = [threading.Thread(target=work, args=(need,)) for need in (10, 40, 60, 90, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert (most <= 100, budget.left) == (True, 100)


def test_a_broken_image_gives_its_memory_back(picture: Callable[..., bytes]) -> None:
    before = decoding.BUDGET.left
    raw = save(noise("RGB"), "PNG")
    with pytest.raises(PictureError):
        open_picture(raw[: len(raw) // 2])
    open_picture(raw)
    assert decoding.BUDGET.left == before
