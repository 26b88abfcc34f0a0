"""Pictures of every kind come in upright, RGB, on white; broken ones say what is wrong with them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mufin.data.images import load_pixels, open_picture, suffix_of
from mufin.errors import PictureError


def save(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def huge_png(side: int = 30_000) -> bytes:
    """A PNG whose header says side × side; its one line of pixels weighs nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    lines = chunk(b"IDAT", zlib.compress(bytes(3 * side + 1)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + lines + chunk(b"IEND", b"")


def test_transparent_pixels_are_white() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 2, 4))
    pixels = np.asarray(open_picture(save(image, "PNG")))
    assert pixels[0, 0].tolist() == [0, 0, 255]
    assert pixels[0, 3].tolist() == [255, 255, 255]


def test_transparent_palette_is_white() -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([0, 0, 0, 255, 0, 0])
    assert np.asarray(open_picture(save(image, "GIF", transparency=0))).min() == 255


def test_cmyk_keeps_its_colour() -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # red
    red, green, blue = np.asarray(open_picture(save(image, "JPEG")))[4, 4]
    assert red > 220
    assert max(green, blue) < 40


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (25_700, 100), (65_535, 255)])
def test_sixteen_bits_are_scaled_not_clipped(value: int, expected: int) -> None:
    image = Image.fromarray(np.full((4, 4), value, np.uint16))
    assert np.unique(np.asarray(open_picture(save(image, "PNG")))).tolist() == [expected]


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "lime")]
    animated = save(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.asarray(open_picture(animated))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    image = Image.new("RGB", (16, 8), "white")
    image.paste("black", (0, 0, 4, 4))  # a mark in the top left corner
    back = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = image if back is None else image.transpose(back)
    exif = Image.Exif()
    exif[0x0112] = orientation
    opened = open_picture(save(stored, "PNG", exif=exif))
    assert opened.size == (16, 8)
    assert np.asarray(opened)[1, 1].tolist() == [0, 0, 0]
    assert np.asarray(opened)[6, 14].tolist() == [255, 255, 255]


def test_damaged_exif_does_not_lose_the_picture() -> None:
    raw = save(Image.new("RGB", (8, 8), "red"), "JPEG", exif=b"Exif\x00\x00garbage")
    assert open_picture(raw).size == (8, 8)


@pytest.mark.parametrize("size", [(10, 40), (400, 100), (64, 64), (1, 1000)])
def test_pixels_fill_the_longer_side_and_are_centred(size: tuple[int, int]) -> None:
    pixels = load_pixels(save(Image.new("RGB", size, "black"), "PNG"), 64)
    assert (pixels.shape, str(pixels.dtype)) == ((64, 64, 3), "uint8")
    dark = pixels.max(axis=2) < 128
    width, height = dark.any(axis=0).sum(), dark.any(axis=1).sum()
    assert max(width, height) == 64
    expected = max(1, round(64 * min(size) / max(size)))
    assert abs(min(width, height) - expected) <= 1
    rows, columns = np.nonzero(dark)
    assert abs(rows.mean() - 31.5) <= 0.5
    assert abs(columns.mean() - 31.5) <= 0.5


@pytest.mark.parametrize(
    ("size", "side", "orientation"),
    [
        *product([(1000, 1000), (1200, 800), (1003, 757), (997, 1333)], [128, 224], [1]),
        *product([(1003, 757)], [128], range(2, 9)),  # whose last pixels are not full
    ],
)
def test_a_jpeg_is_the_same_picture_when_decoded_small(
    size: tuple[int, int], side: int, orientation: int
) -> None:
    rng = np.random.default_rng(0)
    scene = Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8))
    smooth = np.asarray(scene.resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
    grain = (smooth + rng.integers(-12, 13, (*size[::-1], 1))).clip(0, 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = save(Image.fromarray(grain), "JPEG", quality=88, exif=exif)
    small, whole = load_pixels(raw, side), load_pixels(save(open_picture(raw), "PNG"), side)
    difference = np.abs(small.astype(int) - whole)
    assert difference.mean() < 1  # of 255 levels
    assert np.percentile(difference, 99) <= 4


def test_a_picture_given_as_an_image_is_not_changed(picture: Callable[..., bytes]) -> None:
    image = Image.open(io.BytesIO(picture(size=(640, 640), format="JPEG")))
    load_pixels(image, 32)
    assert image.size == (640, 640)


BROKEN = {
    "zero bytes": (b"", "empty \\(0 bytes\\)"),
    "not an image": (b"hello there, no image", "not an image"),
    "30,000 × 30,000": (huge_png(), "pixels.*make it smaller"),
    "just over the limit": (huge_png(10_001), "10001 × 10001 pixels, more than 100,000,000"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # from 89 megapixels on
@pytest.mark.parametrize("name", BROKEN)
def test_broken_bytes_say_why(name: str) -> None:
    raw, message = BROKEN[name]
    with pytest.raises(PictureError, match=message):
        open_picture(raw)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_a_picture_cut_short_says_so(format: str) -> None:
    rng = np.random.default_rng(0)
    raw = save(Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)), format)
    with pytest.raises(PictureError, match="image of .* bytes: (damaged or cut short|not an image)"):
        open_picture(raw[: len(raw) // 2])


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "zero.png").touch()
    with pytest.raises(PictureError, match=r"zero\.png: empty"):
        open_picture(tmp_path / "zero.png")
    with pytest.raises(PictureError, match=r"none\.png: cannot be read: No such file"):
        open_picture(tmp_path / "none.png")
    with pytest.raises(PictureError, match="cannot be read: Is a directory"):
        open_picture(str(tmp_path))
    with pytest.raises(PictureError, match="download it"):
        open_picture("https://example.org/a.png")


@pytest.mark.parametrize(
    ("format", "suffix"), [("PNG", ".png"), ("JPEG", ".jpg"), ("WEBP", ".webp"), ("GIF", ".gif")]
)
def test_suffix(picture: Callable[..., bytes], format: str, suffix: str) -> None:
    assert suffix_of(picture(format=format)) == suffix
    assert suffix_of(b"?") == ".bin"
