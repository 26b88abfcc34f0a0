"""Explain settings from one source: docstrings, types and defaults in `settings.py`, and the presets."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from mufin import config as config_module
from mufin import settings as settings_module
from mufin.config import Config
from mufin.errors import ConfigError
from mufin.presets import PRESETS

BEYOND = re.compile(r"beyond the paper", re.IGNORECASE)
OWN = ("run", "sets", "version", "seed")  # how to run, not what to compute


@dataclass(frozen=True)
class Setting:
    """The documentation of a setting."""

    name: str  # section.key
    meaning: str
    values: str  # allowed ones
    default: Any
    presets: dict[str, Any]  # presets with another value
    in_paper: bool  # then the default is the paper's value

    def lines(self) -> list[str]:
        """Describe the setting in a few lines."""
        facts = [f"Values: {self.values}", f"Default: {shown(self.default)}{self.source}"]
        facts += [f"Preset {name}: {shown(value)}" for name, value in self.presets.items()]
        return [self.name, f"  {self.meaning}", *(f"  {fact}" for fact in facts)]

    @property
    def source(self) -> str:
        """Where the default comes from."""
        return " (the paper's value)" if self.in_paper else ""


@dataclass(frozen=True)
class Group:
    """A section of settings; the first has no name."""

    name: str
    meaning: str
    settings: list[Setting]


def groups() -> list[Group]:
    """Return all sections with their settings, in the order of the file."""
    top, sections = [], []
    schema = Config.model_json_schema()
    for key, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            sections.append(_section(key, field.annotation))
        else:
            top.append(_setting("", key, Config, schema))
    return [Group("", "Settings outside sections.", top), *sections]


def explain(name: str | None) -> list[Group]:
    """Return the setting or the section of this name, or all; raise ConfigError if there is none."""
    found = groups()
    if name is None:
        return found
    known = {group.name: group for group in found if group.name}
    known |= {each.name: Group(g.name, g.meaning, [each]) for g in found for each in g.settings}
    if name not in known:
        section = name.partition(".")[0]
        inside = [each.name for group in found if group.name == section for each in group.settings]
        expected = ", ".join(inside or [key for key in known if "." not in key])
        raise ConfigError(f"unknown setting {name!r}; known: {expected}")
    return [known[name]]


def shown(value: Any) -> str:
    """Format a value as `--set` takes it.

    >>> shown(None), shown(True), shown(["bag"]), shown(0.7)
    ('none', 'true', '["bag"]', '0.7')
    """
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case list():
            return "[" + ", ".join(f'"{each}"' for each in value) + "]"
    return str(value)


def _section(name: str, section: type[BaseModel]) -> Group:
    schema, meaning = section.model_json_schema(), inspect.getdoc(section) or ""
    return Group(name, meaning, [_setting(name, key, section, schema) for key in section.model_fields])


def _setting(section: str, key: str, owner: type[BaseModel], schema: dict[str, Any]) -> Setting:
    name = f"{section}.{key}".strip(".")
    default = owner.model_fields[key].default
    own = {preset: values.get(section, {}).get(key, default) for preset, values in PRESETS.items()}
    changed = {preset: value for preset, value in own.items() if section and value != default}
    meaning = _docstrings()[owner.__name__, key]
    beyond = BEYOND.search(f"{meaning} {owner.__doc__}") or (section or key) in OWN
    return Setting(name, meaning, _values(schema["properties"][key]), default, changed, not beyond)


def _values(schema: dict[str, Any]) -> str:
    """Describe the values that a JSON schema allows.

    >>> _values({"anyOf": [{"type": "integer", "minimum": 16}, {"type": "null"}]})
    'integer, at least 16; or none'
    >>> _values({"enum": ["late", "early"]})
    'late or early'
    """
    if "anyOf" in schema:
        return "; or ".join(_values(each) for each in schema["anyOf"])
    if "const" in schema:
        return shown(schema["const"])
    if "enum" in schema:
        *some, last = map(shown, schema["enum"])
        return f"{', '.join(some)} or {last}" if some else last
    if schema["type"] == "array":
        return f"list of {_values(schema['items'])}"
    kinds = {"boolean": "true or false", "string": "text", "null": "none"}
    words = [kinds.get(schema["type"], schema["type"])]
    limits = {
        "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below",
    }  # fmt: skip
    words += [f"{said} {schema[limit]:.19g}" for limit, said in limits.items() if limit in schema]
    return ", ".join(words)


@cache
def _docstrings() -> dict[tuple[str, str], str]:
    """Return the docstring of each setting by class and key."""
    return {pair: text for module in (settings_module, config_module) for pair, text in _read(module)}


def _read(module: ModuleType) -> Iterator[tuple[tuple[str, str], str]]:
    for owner in ast.parse(inspect.getsource(module)).body:
        if not isinstance(owner, ast.ClassDef):
            continue
        for field, said in zip(owner.body, owner.body[1:], strict=False):
            match field, said:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    yield (owner.name, key), " ".join(text.split())
