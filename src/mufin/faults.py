"""What users write as settings: a value read as TOML, a fault told in one sentence."""

from __future__ import annotations

import tomllib
from typing import Any

from pydantic import BaseModel, ValidationError


def toml_value(text: str) -> Any:
    """What TOML makes of it, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def first_fault(error: ValidationError, settings: type[BaseModel]) -> str:
    """The first fault as one sentence, with the known keys beside an unknown one."""
    fault = error.errors()[0]
    path = [str(part) for part in fault["loc"]]
    if fault["type"] == "extra_forbidden":
        return f"unknown setting {'.'.join(path)!r}; known here: {', '.join(_fields(settings, path[:-1]))}"
    # A section and a key; what may follow is the place in a list, or the kind that a union tried first.
    name = ".".join(path[: 2 if _fields(settings, path[:1]) else 1])
    if fault["type"] == "value_error":
        return f"setting {name!r}: {fault['ctx']['error']}"
    return f"setting {name!r}: {fault['msg'].lower()}, got {fault.get('input')!r}"


def _fields(settings: type[BaseModel], path: list[str]) -> list[str]:
    """The keys of the section at this path; none where there is a plain value."""
    model: Any = settings
    for part in path:
        model = model.model_fields[part].annotation
    return list(getattr(model, "model_fields", ()))
