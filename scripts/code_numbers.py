"""Write code-size figures into docs/design.md; with --check, only test them against their limits."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "mufin"
PAGE = ROOT / "docs" / "design.md"
START, END = "<!-- numbers: made by `make docs` -->", "<!-- end of numbers -->"
DUPLICATE_LINES = 6  # minimum length of a run of lines that counts as duplicate

Function = ast.FunctionDef | ast.AsyncFunctionDef
LIMITS = {
    "lines of the longest file": 320,
    "lines of the longest function": 60,
    "functions with more than 6 parameters": 12,
    "import cycles, deferred imports included": 0,
}


def numbers() -> dict[str, int]:
    """Return each figure by name."""
    sources = {path: path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    functions = [function for text in sources.values() for function in functions_of(ast.parse(text))]
    lines = [text.count("\n") for text in sources.values()]
    return {
        "Python files in `src`": len(sources),
        "lines in all": sum(lines),
        "lines of the longest file": max(lines),
        "lines of the longest function": max(map(length, functions)),
        "functions with more than 6 parameters": sum(parameters(f) > 6 for f in functions),
        "import cycles, deferred imports included": len(cycles(imports(sources))),
        f"pairs of files that share {DUPLICATE_LINES} lines": len(duplicates(sources)),
    }


def functions_of(tree: ast.Module) -> Iterator[Function]:
    """Yield all functions and methods."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def length(function: Function) -> int:
    """Count the lines of a function after its docstring."""
    body = function.body
    if ast.get_docstring(function) and len(body) > 1:
        return (function.end_lineno or 0) - body[1].lineno + 2
    return (function.end_lineno or 0) - function.lineno + 1


def parameters(function: Function) -> int:
    """Count the parameters without `self`; return 0 for a command, whose parameters are its options."""
    takes = function.args
    names = [a.arg for a in (*takes.posonlyargs, *takes.args, *takes.kwonlyargs)]
    annotated = sum("typer." in ast.unparse(a.annotation) for a in takes.args if a.annotation)
    return 0 if annotated else len([name for name in names if name not in ("self", "cls")])


def imports(sources: dict[Path, str]) -> dict[str, set[str]]:
    """Map each module to the mufin modules that it imports anywhere, except for type checking."""
    modules = {module_of(path): path for path in sources}
    found: dict[str, set[str]] = defaultdict(set)
    for module, path in modules.items():
        tree = ast.parse(sources[path])
        for branch in ast.walk(tree):
            if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING":
                branch.body = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found[module] |= {name if name in modules else node.module for name in names} & modules.keys()
    return found


def module_of(path: Path) -> str:
    """Return the module name of a file."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Find one cycle per module that closes one."""
    done: set[str] = set()
    found: list[list[str]] = []

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append(path[path.index(module) :])
        elif module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, [*path, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def duplicates(sources: dict[Path, str]) -> set[tuple[Path, Path]]:
    """Find pairs of files that share a run of lines, ignoring imports, comments and blank lines."""
    seen: dict[tuple[str, ...], set[Path]] = defaultdict(set)
    for path, text in sources.items():
        code = re.sub(r"^(from|import) [^\n(]*(\([^)]*\))?", "", text, flags=re.MULTILINE)
        lines = [line.split("#")[0].strip() for line in code.splitlines()]
        lines = [line for line in lines if len(line) > 3]
        for start in range(len(lines) - DUPLICATE_LINES + 1):
            seen[tuple(lines[start : start + DUPLICATE_LINES])].add(path)
    pairs = (sorted(paths) for paths in seen.values() if len(paths) > 1)
    return {(paths[0], paths[1]) for paths in pairs}


def table(found: dict[str, int]) -> str:
    """Format the figures and their limits as a Markdown table."""
    rows = [f"| {name} | {count:,} | {LIMITS.get(name, '')} |" for name, count in found.items()]
    return "\n".join(["| | now | at most |", "|---|---|---|", *rows])


def main() -> int:
    """Write or check the table; return 1 if a limit is exceeded."""
    found = numbers()
    if "--check" not in sys.argv[1:]:
        page = PAGE.read_text("utf-8")
        before, rest = page.split(START)
        PAGE.write_text(f"{before}{START}\n{table(found)}\n{END}{rest.split(END)[1]}", "utf-8")
    over = [name for name, limit in LIMITS.items() if found[name] > limit]
    for name in over:
        print(f"{name}: {found[name]}, at most {LIMITS[name]}", file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
