"""`mufin info`: describe a model."""

from __future__ import annotations

from mufin.commands import printing
from mufin.commands.options import Json, Run


def info(run: Run, json: Json = False) -> None:
    """Describe a model: its labels, encoders and settings.

    \b
    Example:
      mufin info runs/shop
    """
    from mufin.model.info import describe

    facts = describe(run)
    if json:
        printing.show_json(facts)
    else:
        printing.show_facts(facts)
