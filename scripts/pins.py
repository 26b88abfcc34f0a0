"""Write constraints.txt: the versions installed for this interpreter, and the hashes of all their files.

    python scripts/pins.py            # `make pins`
    python scripts/pins.py --check    # fail if something is installed that constraints.txt does not list

Versions for other systems and for GPUs, which are not installed here, are the newest ones that fit. Wheels in
the folders of PIP_FIND_LINKS may be builds that no registry has; their hashes are added.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "constraints.txt"
PYTHON = "3.11.5"  # the oldest that all tools support; the library itself supports 3.11.0
TOOLS = ("editables", "setuptools", "uv", "wheel")  # that build packages or install them
UNPINNED = ("mufin", "pip")  # installed from this folder; comes with the environment
HEADER = """\
# Made by `make pins`; `make install` installs exactly these versions, from files with these hashes.
"""
# Without local wheels and other settings: the hashes are those of the registry.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}


def canonical(name: str) -> str:
    """Return the name of a package as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Return the installed versions without local suffixes such as `+cpu`."""
    found = {canonical(dist.metadata["Name"]): dist.version.split("+")[0] for dist in distributions()}
    return {name: version for name, version in sorted(found.items()) if name not in UNPINNED}


def compiled(versions: dict[str, str]) -> str:
    """Return a universal lock with hashes for all extras, at these versions where they name one."""
    with tempfile.TemporaryDirectory() as folder:
        pins, tools = Path(folder, "pins.txt"), Path(folder, "tools.in")
        pins.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        tools.write_text("\n".join(TOOLS))
        command = [
            str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml", str(tools), "-q",
            "--all-extras", "--universal", "--python-version", PYTHON, "--generate-hashes", "--no-annotate",
            "--no-header", "-c", str(pins),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, env=CLEAN, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout


def unlisted() -> list[str]:
    """Return what is installed at versions that constraints.txt does not list."""
    lock = TARGET.read_text(encoding="utf-8")
    pins = (f"{name}=={version}" for name, version in installed().items())
    return [pin for pin in pins if not re.search(rf"^{re.escape(pin)} ", lock, re.M)]


def with_local_wheels(lock: str, folders: list[Path]) -> str:
    """Add the hash of every local wheel of a locked version, with its name in a comment."""
    for wheel in sorted(path for folder in folders for path in folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        start = f"{canonical(name)}=={version.split('+')[0]} "
        with wheel.open("rb") as file:
            digest = f"    --hash=sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        if digest not in lock:
            also = rf"# also {wheel.name}, a local build\n\g<0>{digest} \\\n"
            lock = re.sub(rf"^{re.escape(start)}[^\n]*\n", also, lock, flags=re.M)
    return lock


def main() -> None:
    """Write the lock and say how long it is, or check it."""
    if "--check" in sys.argv:
        if missing := unlisted():
            raise SystemExit(f"{TARGET.name} does not list {', '.join(missing)}; run: make pins")
        return
    folders = [Path(folder) for folder in os.environ.get("PIP_FIND_LINKS", "").split()]
    lock = with_local_wheels(compiled(installed()), folders)
    TARGET.write_text(HEADER + lock, encoding="utf-8")
    print(f"{TARGET.name}: {len(re.findall('^[a-z]', lock, re.M))} versions, {lock.count('--hash=')} hashes")


if __name__ == "__main__":
    main()
