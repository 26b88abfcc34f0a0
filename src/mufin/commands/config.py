"""`mufin config`: print settings, presets and variants."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands.options import Overwrite, Settings, Variant, check_new_file
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.config import Config


def config(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[SETTING]", help="Section or section.key to explain."),
    ] = None,
    preset: Annotated[str, typer.Option(metavar="NAME", help="Preset to start from.")] = "best",
    variant: Variant = None,
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file.")
    ] = None,
    overwrite: Overwrite = False,
    list_names: Annotated[
        bool, typer.Option("--list", help="List presets and variants with their settings.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain settings: meaning, values, default, presets.")
    ] = False,
) -> None:
    """Print settings as TOML, for `mufin train --config`.

    \b
    Example:
      mufin config --preset paper --set pretrain.epochs=50 -o shop.toml
      mufin config --preset paper --variant no-as
      mufin config --explain run.patience
    """
    if name is not None and not explain:
        raise UsageError(f"unexpected argument {name!r}; to read about a setting, add --explain")
    if explain:
        return _explain_settings(name)
    if list_names:
        return _list_settings()
    text = chosen_settings(preset, None, variant, settings or []).to_toml()
    if output is None:
        typer.echo(text, nl=False)
    else:
        check_new_file(output, overwrite)
        output.write_text(text, "utf-8")
        typer.echo(
            f"Settings written to {output}; use them with: mufin train FOLDER -o RUN --config {output}"
        )


def _explain_settings(name: str | None) -> None:
    """Print what a setting, a section or all settings mean."""
    from mufin.config_docs import explain

    for group in explain(name):
        if group.name and len(group.settings) > 1:
            typer.echo(f"[{group.name}] {group.meaning}\n")
        for setting in group.settings:
            for line in setting.lines():
                typer.echo("\n".join(textwrap.wrap(line, 100, subsequent_indent="  ")))
            typer.echo()


def _list_settings() -> None:
    """Print the settings in which presets differ from the paper, and those that variants change."""
    from mufin.config import Config, differences
    from mufin.presets import PRESETS, VARIANTS

    typer.echo("Presets")
    for name in PRESETS:
        changed = differences(Config.preset(name), Config())
        typer.echo(f"  {name}" + ("" if changed else "  (the paper's values)"))
        for line in changed:
            typer.echo(f"    {line}")
    typer.echo("Variants")
    for name, changes in VARIANTS.items():
        typer.echo(f"  {name}")
        for line in changes:
            typer.echo(f"    {line}")


def chosen_settings(preset: str | None, file: Path | None, variant: str | None, changes: list[str]) -> Config:
    """Return the settings of a preset or a file, with the variant and the changes applied."""
    from mufin.config import Config

    if preset is not None and file is not None:
        raise UsageError("use --preset or --config, not both")
    base = Config.preset(preset or "best") if file is None else Config.read(file)
    return base.override(changes) if variant is None else base.variant(variant, changes)
