"""Project labels into the plane in a process of its own, so that queries do not wait.

    python -m mufin.serve.project VECTORS.npy POINTS.npy

Prints how far it is, as a share, one number a line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from mufin.plane import plane


def main(source: str, target: str) -> None:
    """Read vectors, write points and how they were found."""
    os.nice(10)
    out = sys.stdout
    points, how = plane(np.load(source), lambda share: print(f"{share:.3f}", file=out, flush=True))
    np.save(target, points)
    Path(target).with_suffix(".txt").write_text(how)


if __name__ == "__main__":
    main(*sys.argv[1:])
