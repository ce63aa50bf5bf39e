"""Config trees as JSON and back: errors name the dotted field, the value and the remedy."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from model.config import require

T = TypeVar("T")


def to_dict(config: object) -> Any:
    """A dataclass tree as JSON-ready dicts and lists."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, (tuple, list)):
        return [to_dict(item) for item in config]
    return config


def digest(value: object) -> str:
    """Eight hex digits that identify a JSON-able value."""
    text = json.dumps(to_dict(value), sort_keys=True, separators=(",", ":"), default=to_dict)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def from_dict(cls: type[T], data: object, path: str = "") -> T:
    """Build a config class from JSON; errors name the dotted field, the value and the remedy."""
    return typing.cast(T, _build(cls, data, path))


def _build(kind: Any, data: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, data, path)
    origin = get_origin(kind)
    if origin is Literal:
        require(data in get_args(kind), path, f"one of {list(get_args(kind))}", data, "choose one")
        return data
    if origin in (types.UnionType, typing.Union):
        if data is None and type(None) in get_args(kind):
            return None
        return _build(_member(kind, data), data, path)
    if origin is tuple:
        require(isinstance(data, (list, tuple)), path, "a list", data, "use [...]")
        args = get_args(kind)
        kinds = [args[0]] * len(data) if args[-1] is Ellipsis else list(args)
        require(len(kinds) == len(data), path, f"{len(kinds)} long", data, "fix its length")
        return tuple(
            _build(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(zip(kinds, data, strict=True))
        )
    if kind is float:
        require(
            isinstance(data, (int, float)) and not isinstance(data, bool),
            path,
            "a number",
            data,
            "give a number",
        )
        return float(data)
    right = isinstance(data, kind) and (kind is bool or not isinstance(data, bool))
    require(right, path, f"of type {kind.__name__}", data, "fix its type")
    return data


def _member(union: Any, data: Any) -> Any:
    """The member of a union that `data` is meant for: a list's, a string's, or the other one."""
    kinds = [k for k in get_args(union) if k is not type(None)]
    origins: dict[type, Any] = {list: tuple, tuple: tuple, str: Literal}
    fitting = [k for k in kinds if get_origin(k) is origins.get(type(data))]
    return (fitting or kinds)[0]


@cache  # every manifest is read through here
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _build_dataclass(kind: Any, data: Any, path: str) -> Any:
    require(isinstance(data, dict), path or "config", "an object", data, "use {...}")
    prefix = f"{path}." if path else ""
    hints = _hints(kind)
    unknown = sorted(set(data) - set(hints))
    require(
        not unknown,
        prefix + (unknown or [""])[0],
        f"a field of {kind.__name__}",
        unknown,
        f"choose among {sorted(hints)}",
    )
    missing = [
        f.name
        for f in dataclasses.fields(kind)
        if f.name not in data
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    require(not missing, prefix + (missing or [""])[0], "given", "nothing", "add it")
    return kind(**{name: _build(hints[name], value, prefix + name) for name, value in data.items()})
