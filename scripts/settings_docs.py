"""Generate docs/settings.md from the docstrings, types and defaults in settings.py, and the presets."""

from pathlib import Path

from mufin.config_docs import Group, groups, shown
from mufin.presets import PRESETS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
HEADER = """\
# Settings

<!-- Made by `make docs` from `src/mufin/settings.py`; do not edit. -->

Set them with `mufin train --set section.key=value`; in a TOML file, with `mufin config -o shop.toml` and
`mufin train --config shop.toml`; or in Python, with `Config.preset("best").override(["section.key=value"])`.
`none` unsets a setting that may be missing. `mufin config --explain section.key` prints what is said here.

Defaults are the preset `paper`, and the paper's values unless the last column says otherwise. Where a preset
has another value, it is in the preset's column.
"""


def table(group: Group) -> str:
    """Return the heading and the table of a section."""
    names = [name for name in PRESETS if name != "paper"]
    rows = [
        f"| setting | default | {' | '.join(names)} | values | meaning |",
        "|---" * (4 + len(names)) + "|",
    ]
    for each in group.settings:
        presets = [_code(each.presets[name]) if name in each.presets else "" for name in names]
        note = "" if each.in_paper or "eyond the paper" in each.meaning else " *Not in the paper.*"
        cells = [f"`{each.name}`", _code(each.default), *presets, each.values, each.meaning + note]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    title = f"[{group.name}]" if group.name else "All models"
    return f"\n## {title}\n{group.meaning}\n\n" + "\n".join(rows) + "\n"


def render() -> str:
    """Return the page as Markdown."""
    return HEADER + "".join(table(group) for group in groups())


def _code(value: object) -> str:
    return f"`{shown(value)}`"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
