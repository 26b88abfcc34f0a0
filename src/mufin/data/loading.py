"""Decode many images in a thread pool while the caller works on earlier ones."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mufin.data.images import load_pixels
from mufin.errors import PictureError

if TYPE_CHECKING:
    from mufin.data.item import Picture

Loaded = np.ndarray | PictureError


def loaded(
    pictures: Sequence[Picture], size: int, batch: int = 64, overlap: bool = True
) -> Generator[Loaded]:
    """Yield the pixels of each image in order, (size, size, 3) uint8, or its PictureError.

    At most `batch` images are in flight: being decoded, or decoded and not yet taken. With `overlap`,
    threads decode while the caller works; without, they decode a batch, then leave the cores to the caller.
    Close the iterator if you stop early; this cancels images that no thread has started.
    """
    if len(pictures) <= 1:  # handing a single image to a thread costs more than it saves
        yield from (_load(picture, size) for picture in pictures)
        return
    waiting: deque[Future[Loaded]] = deque()
    threads, kept = _threads(), batch - 1 if overlap else 0
    try:
        for number, picture in enumerate(pictures, 1):  # read lazy sequences in this thread only
            waiting.append(_submitted(threads, picture, size))
            if len(waiting) < batch and number < len(pictures):
                continue
            if not overlap:
                wait(waiting)
            while len(waiting) > kept:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _submitted(threads: ThreadPoolExecutor, picture: Picture, size: int) -> Future[Loaded]:
    """Let a thread decode an image; do it here if the system allows no more threads."""
    try:
        return threads.submit(_load, picture, size)
    except RuntimeError:
        done: Future[Loaded] = Future()
        done.set_result(_load(picture, size))
        return done


def _load(picture: Picture, size: int) -> Loaded:
    try:
        return load_pixels(picture, size)
    except PictureError as error:
        return error


@cache
def _threads() -> ThreadPoolExecutor:
    """Return a pool of one thread per core; Pillow releases the GIL while it decodes and resizes."""
    return ThreadPoolExecutor(cores(), "mufin-images")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):  # threads do not survive a fork; start new ones in the child
    os.register_at_fork(after_in_child=_threads.cache_clear)
