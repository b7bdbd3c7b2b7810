"""Tests of the conversion between JSON and annotated types."""

import enum
import unittest
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NewType, Optional, Union

from ordain.codec import DecodeError, decoder, encode

Cents = NewType("Cents", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclass
class Item:
    name: str
    cents: Cents
    colour: Colour = Colour.RED
    tags: list[str] = field(default_factory=list)


@dataclass
class Basket:
    items: list[Item]
    prices: dict[str, float]
    kind: Literal["open", "closed", 3] = "open"
    note: Optional[str] = None
    position: tuple[int, str] = (0, "")
    any: Any = None
    inner: "Basket | None" = None
    derived: int = field(init=False, default=7)


@dataclass
class Even:
    n: int

    def __post_init__(self):
        if self.n % 2:
            raise ValueError(f"{self.n} is odd")


class Decoding(unittest.TestCase):
    def fault(self, as_type: Any, data: bytes) -> str:
        with self.assertRaises(DecodeError) as caught:
            decoder(as_type)(data)
        return str(caught.exception)

    def test_decoding_reverses_encoding(self):
        inner = Basket([], {}, "closed", "ž☃", (1, "x"), {"a": [None, True]})
        basket = Basket([Item("a", Cents(2**64 - 1), Colour.BLUE, ["t"])], {"x": 0.5}, 3, inner=inner)
        self.assertEqual(decoder(Basket)(encode(basket)), basket)

    def test_defaults_fill_missing_fields_and_unknown_fields_are_ignored(self):
        basket = decoder(Basket)(b'{"items":[{"name":"a","cents":1,"x":1}],"prices":{},"derived":1}')
        self.assertEqual(basket, Basket([Item("a", Cents(1))], {}))

    def test_error_names_the_path_and_the_type(self):
        for data, fault in [
            (b'{"prices":{}}', "`items`: missing; expected list[Item]"),
            (
                b'{"items":[{"name":"a","cents":1},{"name":2,"cents":1}],"prices":{}}',
                "`items[1].name`: expected str, found int 2",
            ),
            (b'{"items":[],"prices":{"\xc5\xbe":"x"}}', '`prices["ž"]`: expected float, found str "x"'),
            (
                b'{"items":[],"prices":{},"kind":"shut"}',
                '`kind`: expected one of "open", "closed", 3, found str "shut"',
            ),
            (b'{"items":[],"prices":{},"kind":true}', "found bool true"),
            (b'{"items":[],"prices":{},"position":[1]}', "`position`: expected a list of 2, found a list of 1"),
            (
                b'{"items":[],"prices":{},"inner":{"items":{},"prices":{}}}',
                "`inner.items`: expected a list, found an object",
            ),
            (b"[]", "expected an object (Basket), found a list"),
            (b"", "expected an object (Basket), found null, because the data is empty"),
        ]:
            with self.subTest(data=data):
                self.assertIn(fault.replace("list[Item]", "list["), self.fault(Basket, data))

    def test_invalid_json_is_refused(self):
        for data, fault in [
            (b"{", "invalid JSON"),
            (b'"\xff"', "invalid UTF-8 at byte 1"),
            ('"x"'.encode("utf-16"), "invalid UTF-8 at byte 0"),
            (b"NaN", "NaN is not a JSON number"),
            (b"[" * 100_000, "nested too deeply"),
        ]:
            with self.subTest(fault=fault):
                self.assertIn(fault, self.fault(Any, data))

    def test_types_are_not_converted(self):
        for as_type, data in [(int, b"true"), (int, b"1.0"), (str, b"1"), (bool, b"1"), (float, b'"1"'), (None, b"0")]:
            with self.subTest(as_type=as_type):
                self.assertIn("expected", self.fault(as_type, data))

    def test_integers_are_exact(self):
        for number in (2**53 + 1, 2**64 - 1, -(2**63), 10**30):
            self.assertEqual(encode(decoder(int)(str(number).encode())), str(number).encode())

    def test_integer_is_a_float(self):
        self.assertIs(type(decoder(float)(b"1")), float)
        self.assertIn("expected float", self.fault(float, b"1" + b"0" * 400))

    def test_first_matching_type_of_a_union_wins(self):
        read = decoder(Union[int, Item, list[int]])
        self.assertEqual(read(b"1"), 1)
        self.assertEqual(read(b'{"name":"a","cents":1}'), Item("a", Cents(1)))
        self.assertEqual(read(b"[1]"), [1])
        self.assertIn("expected int | Item | list[int], found str", self.fault(Union[int, Item, list[int]], b'"x"'))

    def test_value_error_of_a_dataclass_is_a_decode_error(self):
        self.assertEqual(decoder(Even)(b'{"n":2}'), Even(2))
        self.assertEqual(self.fault(list[Even], b'[{"n":2},{"n":3}]'), "`[1]`: 3 is odd")

    def test_empty_data_is_null(self):
        self.assertIsNone(decoder(Optional[Item])(b""))
        self.assertIsNone(decoder(Any)(b""))

    def test_bytes_stay_unchanged(self):
        self.assertEqual(decoder(bytes)(b"\xff\x00"), b"\xff\x00")
        self.assertEqual(encode(bytearray(b"\xff\x00")), b"\xff\x00")

    def test_annotated_is_decoded_as_its_type(self):
        self.assertEqual(decoder(Annotated[int, "cents"])(b"1"), 1)

    def test_unsupported_type_is_refused(self):
        @dataclass
        class Nested:
            raw: bytes

        for as_type, place in [(set[int], "set[int]"), (dict[int, str], "dict[int, str]"), (complex, "complex")]:
            with self.subTest(place=place), self.assertRaisesRegex(TypeError, "cannot be decoded") as caught:
                decoder(as_type)
            self.assertIn(place, str(caught.exception))
        with self.assertRaisesRegex(TypeError, "^Nested.raw: the type bytes cannot be decoded"):
            decoder(Nested)


class Encoding(unittest.TestCase):
    def test_json_is_compact_utf8(self):
        self.assertEqual(encode({"ž": [1, Colour.BLUE, None]}), '{"ž":[1,2,null]}'.encode())

    def test_half_surrogate_keeps_its_escape_sequence(self):
        data = b'"\\ud83d"'
        self.assertEqual(encode(decoder(str)(data)), data)

    def test_value_without_json_form_is_refused(self):
        for value in ({1, 2}, float("nan"), object(), {(1, 2): 3}, Item):
            with self.subTest(value=value), self.assertRaises((TypeError, ValueError)):
                encode(value)
