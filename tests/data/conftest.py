"""Small images and folders that the data tests share."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Rows = list[dict[str, Any]]


def encoded(
    color: str | tuple[int, ...] = "red", size: tuple[int, int] = (6, 4), format: str = "PNG"
) -> bytes:
    """Encode an image of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, format)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a JSONL folder: keyword = file, value = its rows or its raw bytes."""

    def write(**tables: Rows | bytes) -> Path:
        for name, rows in tables.items():
            raw = (
                rows if isinstance(rows, bytes) else "".join(json.dumps(row) + "\n" for row in rows).encode()
            )
            (tmp_path / f"{name}.jsonl").write_bytes(raw)
        return tmp_path

    return write


@pytest.fixture
def picture() -> Callable[..., bytes]:
    """A function that encodes an image of one colour."""
    return encoded
