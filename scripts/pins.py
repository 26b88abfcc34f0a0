"""Write constraints.txt: the exact version of everything installed beside this interpreter."""

from importlib.metadata import distributions
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "constraints.txt"
# What the environment brings itself, and what we install from this folder.
UNPINNED = {"mufin", "pip"}
HEADER = "# Made by `make pins`; `make install` installs exactly these versions.\n"


def main() -> None:
    """Write one `name==version` a line, sorted; a local suffix such as `+cpu` is the machine's affair."""
    found = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in distributions()}
    pins = [f"{name}=={found[name].split('+')[0]}\n" for name in sorted(found) if name not in UNPINNED]
    TARGET.write_text(HEADER + "".join(pins), encoding="utf-8")
    print(f"{TARGET.name}: {len(pins)} versions")


if __name__ == "__main__":
    main()
