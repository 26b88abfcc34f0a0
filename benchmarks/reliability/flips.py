"""Flip random bits of a model folder, one at a time, and see whether checking the folder notices.

    python benchmarks/reliability/flips.py runs/demo --flips 1000

The files are chosen in turn, so that small ones are hit as often as large ones. A flip is noticed if reading
the manifest or checking the parts, which is what `load` and `mufin check` do first, raises a ModelError.
The map of the labels, which `mufin serve` stores beside the parts, has a reader of its own. To have it, serve
the model once and open the map.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mufin.errors import ModelError
from mufin.files.folder import check_part, check_parts
from mufin.model.manifest import read_model_manifest
from mufin.serve.map import FILE as MAP
from mufin.serve.map import read_stored


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def noticed(folder: Path, path: Path) -> bool:
    """Check what reads the changed file; the others are as they were."""
    try:
        if path.name == MAP:
            read_stored(path)
        manifest = read_model_manifest(folder)
        for entry in manifest["parts"].values():
            if folder / entry["file"] == path:
                check_part(folder, entry)
    except (ModelError, ValueError, RecursionError):
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    started, seen, missed = time.monotonic(), Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="mufin-flips-") as name:
        folder = Path(shutil.copytree(options.model, Path(name, "model")))
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        empty = sorted(path.name for path in folder.rglob("*") if path.is_file() and path not in files)
        folder_map = folder / MAP in files
        for number in range(options.flips):
            path = files[number % len(files)]
            bit = random.randrange(8 * path.stat().st_size)
            flip(path, bit)
            if noticed(folder, path):
                seen[path.name] += 1
            else:
                missed.append(f"{path.name}, bit {bit}")
            flip(path, bit)
        check_parts(folder, read_model_manifest(folder))  # all is as it was
    seconds = round(time.monotonic() - started)
    print(json.dumps({"flips": options.flips, "files": len(files), "noticed": seen.total(),
                      "map": folder_map, "missed": missed, "empty": empty, "seconds": seconds}))  # fmt: skip
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
