"""A call of a handler: decodes the event and the state, and checks the outcome. A component makes this call for its
host, and a `Runner` makes it for a test.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable
from typing import Any

from ordain.codec import decoder
from ordain.event import Event, decode_state
from ordain.outcome import Outcome

Handle = Callable[..., Outcome]
"""A handler: a function of an event and a state, or of an event, a state and data."""


class HandlerError(TypeError):
    """A function that is no handler, or whose annotations name a type that cannot be decoded."""


class Call:
    """A handler, prepared for calls with encoded state and data."""

    state_type: Any
    """The type of the state, without `None`."""

    def __init__(self, handle: Handle) -> None:
        """Reads the annotations of `handle`. Raises `HandlerError` if `handle` is no handler."""
        self._handle = handle
        self._name = getattr(handle, "__name__", type(handle).__name__)
        self.state_type, self._data_type = _types(handle, self._name)

    def __call__(self, event: Event, state: bytes | None) -> Outcome:
        """Calls the handler with the decoded state and data."""
        arguments = () if self._data_type is None else (event.decode(self._data_type),)
        before = None if state is None else decode_state(state, self.state_type)
        outcome = self._handle(event, before, *arguments)
        if type(outcome) is not Outcome:
            raise TypeError(
                f"`{self._name}` returned a value of type {type(outcome).__name__}; a handler returns put(state), "
                "keep() or delete()"
            )
        return outcome


def seed_random(event: Event) -> None:
    """Seeds the functions of the module `random` by stream, key and sequence, so that each try of an event draws the
    same numbers.
    """
    import random

    random.seed(f"{event.stream}\0{event.key}\0{event.sequence}")


def _types(handle: Handle, name: str) -> tuple[Any, Any]:
    """Returns the types of the state and of the data; `None` as the type of the data without a third parameter."""
    if not callable(handle):
        raise HandlerError(f"`{name}` is not a function")
    function = handle if inspect.isroutine(handle) else type(handle).__call__
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise HandlerError(
            f"`{name}` must be a plain function, without `async` and `yield`: a handler waits for nothing"
        )
    parameters = [
        parameter.name
        for parameter in inspect.signature(handle).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(parameters) not in (2, 3):
        raise HandlerError(
            f"`{name}` has {len(parameters)} parameters; a handler has the parameters (event, state) or (event, state, "
            "data)"
        )
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise HandlerError(f"the annotations of `{name}` cannot be evaluated: {error}") from None
    state_type = _state_type(hints.get(parameters[1], Any), name, parameters[1])
    data_type = hints.get(parameters[2], Any) if len(parameters) == 3 else None
    if len(parameters) == 3 and data_type is type(None):
        raise HandlerError(f"`{parameters[2]}` of `{name}` has the type None; leave out the parameter instead")
    for parameter, as_type in zip(parameters[1:], (state_type, data_type), strict=False):
        _check_type(as_type, name, parameter)
    return state_type, data_type


def _check_type(as_type: Any, name: str, parameter: str) -> None:
    try:
        decoder(as_type)
    except (TypeError, NameError) as error:
        raise HandlerError(f"the annotation of `{parameter}` in `{name}`: {error}") from None


def _state_type(annotation: Any, name: str, parameter: str) -> Any:
    """Returns the annotation of the state without `None`."""
    if annotation is Any or annotation is object or annotation is type(None):
        return annotation
    arguments = typing.get_args(annotation)
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    if not is_union or type(None) not in arguments:
        raise HandlerError(
            f"`{parameter}` of `{name}` must accept None, because a key begins without state: add `| None` to its "
            "annotation"
        )
    others = tuple(argument for argument in arguments if argument is not type(None))
    return functools.reduce(operator.or_, others)
