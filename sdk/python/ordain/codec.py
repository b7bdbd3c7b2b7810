"""Converts JSON into annotated types, and values into JSON.

These types can be decoded, nested in any way:

- `bool`, `int`, `float` (from any number), `str`, `None`, and `Any` or `object` for unchecked JSON
- dataclasses: a field without default is required, and unknown fields are ignored
- `list[T]`, `tuple[T, ...]`, `tuple[A, B]` and `dict[str, T]`
- `T | None`, `Optional[T]`, other unions (the first matching type wins), `Literal` and `Enum` (by value)
- `NewType` and `Annotated`

If `__post_init__` of a dataclass raises a `ValueError`, the value is not decoded. `bytes` as the whole type leaves the
bytes unchanged; a handler can then use any other library. All numbers without fraction and exponent are exact.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["DecodeError", "decoder", "encode"]

_FOUND_LIMIT = 60
"""Maximum number of characters of a wrong value that an error shows."""


class DecodeError(ValueError):
    """Bytes that do not match the expected type. The text contains the path of the field and the expected type."""


class _Mismatch(Exception):
    """A JSON value that does not match its type. Each level of the decoder prepends its part of the path."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.path = ""

    def within(self, part: str) -> _Mismatch:
        self.path = part + self.path
        return self

    def __str__(self) -> str:
        path = self.path.removeprefix(".")
        return f"`{path}`: {self.fault}" if path else self.fault


_Reader = Callable[[Any], Any]


@functools.cache
def decoder(as_type: Any) -> Callable[[bytes], Any]:
    """Returns a function that decodes bytes as a value of `as_type`, or raises `DecodeError`.

    Raises `TypeError` if `as_type` cannot be decoded from JSON.
    """
    if as_type is bytes:
        return lambda data: data
    read = _reader(as_type, _type_name(as_type))

    def decode(data: bytes) -> Any:
        try:
            return read(_parse(data) if data else None)
        except _Mismatch as mismatch:
            fault = str(mismatch) if data else f"{mismatch.fault}, because the data is empty"
            raise DecodeError(fault) from None

    return decode


def _parse(data: bytes) -> Any:
    """Parses JSON. `json.loads` is not used for bytes, because it accepts UTF-16 too."""
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DecodeError(f"invalid UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise DecodeError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise DecodeError(f"invalid JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def encode(value: Any) -> bytes:
    """Encodes a value as compact JSON in UTF-8; `bytes`, `bytearray` and `memoryview` stay unchanged.

    Dataclasses become objects, and members of an `Enum` become their values. Raises `TypeError` or `ValueError` if JSON
    cannot express the value.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    text = _ENCODER.encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair has a form in JSON, but not in UTF-8.
        return _ASCII_ENCODER.encode(value).encode()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in _field_names(type(value))}
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _new_encoder(ensure_ascii: bool) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":"), default=_plain)


_ENCODER = _new_encoder(ensure_ascii=False)
_ASCII_ENCODER = _new_encoder(ensure_ascii=True)


def _reader(kind: Any, place: str) -> _Reader:
    """Returns the function that checks and converts a JSON value. `place` names the annotation in a `TypeError`."""
    while True:
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        else:
            break
    if kind is Any or kind is object:
        return lambda value: value
    if kind in _SCALARS:
        return _scalar_reader(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _choice_reader({member.value: member for member in kind})
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_readers.get(kind) or _dataclass_reader(kind)
    return _generic_reader(kind, place)


def _generic_reader(kind: Any, place: str) -> _Reader:
    origin = typing.get_origin(kind) or kind
    arguments = typing.get_args(kind)
    if origin is typing.Union or origin is types.UnionType:
        return _union_reader([_reader(argument, place) for argument in arguments], kind)
    if origin is typing.Literal:
        return _choice_reader({argument: argument for argument in arguments})
    if origin is list or origin is Sequence:
        return _list_reader(_reader(arguments[0] if arguments else Any, place), list)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return _list_reader(_reader(arguments[0], place), tuple)
    if origin is tuple and arguments:
        return _tuple_reader([_reader(argument, place) for argument in arguments])
    if origin is dict or origin is Mapping:
        key, item = arguments or (str, Any)
        if key is str:
            return _dict_reader(_reader(item, place))
    raise TypeError(
        f"{place}: the type {_type_name(kind)} cannot be decoded from JSON. Supported types are dataclasses, Enum, "
        "Literal, list, tuple, dict[str, T], unions, bool, int, float, str and Any; or annotate the parameter of "
        "the handler with bytes, and decode the bytes with a library"
    )


_SCALARS: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
    None: (type(None),),
    type(None): (type(None),),
}


def _scalar_reader(kind: Any) -> _Reader:
    # An exact comparison, because `True` is an instance of `int`.
    accepted = _SCALARS[kind]
    name = _type_name(kind)

    def read(value: Any) -> Any:
        if type(value) in accepted:
            return value
        raise _Mismatch(f"expected {name}, found {_found(value)}")

    def read_float(value: Any) -> float:
        try:
            return float(read(value))
        except OverflowError:
            raise _Mismatch(f"expected float, found {_found(value)}") from None

    return read_float if kind is float else read


def _choice_reader(choices: dict[Any, Any]) -> _Reader:
    typed = {(type(value), value): member for value, member in choices.items()}
    names = ", ".join(json.dumps(value, ensure_ascii=False, default=str) for value in choices)

    def read(value: Any) -> Any:
        try:
            return typed[type(value), value]
        except (KeyError, TypeError):
            raise _Mismatch(f"expected one of {names}, found {_found(value)}") from None

    return read


def _dataclass_reader(kind: type) -> _Reader:
    # For each field: its name, its reader, and the name of its type if the field is required.
    fields: list[tuple[str, _Reader, str | None]] = []

    def resolve() -> None:
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            if field.init:
                hint = hints[field.name]
                no_default = field.default is field.default_factory is dataclasses.MISSING
                read = _reader(hint, f"{kind.__name__}.{field.name}")
                fields.append((field.name, read, _type_name(hint) if no_default else None))

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Mismatch(f"expected an object ({kind.__name__}), found {_found(value)}")
        arguments = {}
        for name, read_field, required in fields:
            if name in value:
                try:
                    arguments[name] = read_field(value[name])
                except _Mismatch as mismatch:
                    raise mismatch.within(f".{name}") from None
            elif required is not None:
                raise _Mismatch(f"missing; expected {required}").within(f".{name}")
        try:
            return kind(**arguments)
        except ValueError as error:
            raise _Mismatch(str(error)) from None

    # A dataclass may contain itself: the reader must be known before its fields are resolved.
    _dataclass_readers[kind] = read
    try:
        resolve()
    except BaseException:
        del _dataclass_readers[kind]
        raise
    return read


_dataclass_readers: dict[type, _Reader] = {}


def _list_reader(read_item: _Reader, build: Callable[[list[Any]], Any]) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _Mismatch(f"expected a list, found {_found(value)}")
        items = []
        try:
            for item in value:
                items.append(read_item(item))
        except _Mismatch as mismatch:
            raise mismatch.within(f"[{len(items)}]") from None
        return items if build is list else build(items)

    return read


def _tuple_reader(readers: list[_Reader]) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            length = f" of {len(value)}" if type(value) is list else ""
            raise _Mismatch(f"expected a list of {len(readers)}, found {_found(value)}{length}")
        items: list[Any] = []
        try:
            for read_item, item in zip(readers, value, strict=True):
                items.append(read_item(item))
        except _Mismatch as mismatch:
            raise mismatch.within(f"[{len(items)}]") from None
        return tuple(items)

    return read


def _dict_reader(read_item: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Mismatch(f"expected an object, found {_found(value)}")
        items = {}
        for name, item in value.items():
            try:
                items[name] = read_item(item)
            except _Mismatch as mismatch:
                raise mismatch.within(f"[{json.dumps(name, ensure_ascii=False)}]") from None
        return items

    return read


def _union_reader(readers: list[_Reader], kind: Any) -> _Reader:
    others = [argument for argument in typing.get_args(kind) if argument is not type(None)]
    if len(others) == 1:
        return _optional_reader(readers[typing.get_args(kind).index(others[0])])

    def read(value: Any) -> Any:
        for read_one in readers:
            try:
                return read_one(value)
            except _Mismatch:
                continue
        raise _Mismatch(f"expected {_type_name(kind)}, found {_found(value)}")

    return read


def _optional_reader(read_some: _Reader) -> _Reader:
    return lambda value: None if value is None else read_some(value)


def _found(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) is dict:
        return "an object"
    if type(value) is list:
        return "a list"
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= _FOUND_LIMIT else text[:_FOUND_LIMIT] + "…"
    return f"{type(value).__name__} {text}"


def _type_name(kind: Any) -> str:
    if kind is None or kind is type(None):
        return "None"
    origin = typing.get_origin(kind)
    if origin is typing.Union or origin is types.UnionType:
        return " | ".join(_type_name(argument) for argument in typing.get_args(kind))
    if isinstance(kind, type) and origin is None:
        return kind.__name__
    return str(kind).replace("typing.", "")
