"""Flip random bits of a model folder, one at a time, and see whether checking the folder notices.

    python benchmarks/reliability/flips.py runs/demo --flips 1000

The files are chosen in turn, so that small ones are hit as often as large ones. A flip is noticed if reading
the manifest or checking the parts, which is what `load` and `mufin check` do first, raises a ModelError.
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
from mufin.files.folder import MANIFEST, check_part, check_parts, manifest_files
from mufin.model.manifest import read_model_manifest


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def noticed(folder: Path, path: Path) -> bool:
    """Check what reads the changed file; the others are as they were."""
    try:
        manifest = read_model_manifest(folder)
        for entry in manifest["parts"].values():
            if folder / entry["file"] == path:
                check_part(folder, entry)
    except ModelError:
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
        files = [folder / name for name in sorted({MANIFEST, *manifest_files(folder)})]
        others = {path for path in folder.rglob("*") if path.is_file()} - {*files}
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
                      "missed": missed, "no parts of the model": sorted(path.name for path in others),
                      "seconds": seconds}))  # fmt: skip
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
