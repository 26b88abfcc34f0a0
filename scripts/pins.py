"""Write the exact versions of all packages installed for this interpreter to constraints.txt."""

from importlib.metadata import distributions
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "constraints.txt"
# pip comes with the environment, mufin is installed from this folder.
UNPINNED = {"mufin", "pip"}
HEADER = "# Made by `make pins`; `make install` installs exactly these versions.\n"


def main() -> None:
    """Write one sorted `name==version` per line, without local suffixes such as `+cpu`."""
    found = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in distributions()}
    pins = [f"{name}=={found[name].split('+')[0]}\n" for name in sorted(found) if name not in UNPINNED]
    TARGET.write_text(HEADER + "".join(pins), encoding="utf-8")
    print(f"{TARGET.name}: {len(pins)} versions")


if __name__ == "__main__":
    main()
