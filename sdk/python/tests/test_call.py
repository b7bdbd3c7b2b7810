"""Tests of the annotations of a handler, and of calls by a `Runner`."""

import random
import unittest
from dataclasses import dataclass
from typing import Any

from ordain import DecodeError, Event, Message, Outcome, Reject, Retry, StateError, delete, keep, put
from ordain.call import Call
from ordain.testing import Runner


@dataclass
class Change:
    amount: int


@dataclass
class Account:
    balance: int = 0


def account(event: Event, state: Account | None, data: Change) -> Outcome:
    if event.type == "retry":
        raise Retry("later", after_ms=20)
    if event.type == "fault":
        raise RuntimeError("broken")
    if event.type == "closed":
        return delete().complete()
    after = Account((state or Account()).balance + data.amount)
    if after.balance < 0:
        raise Reject(f"the balance would be {after.balance}")
    return put(after).emit("out", "changed", after)


class Runs(unittest.TestCase):
    def test_state_is_kept_from_event_to_event(self):
        run = Runner(account, first=0)
        self.assertIsNone(run.state)
        run.event("changed", {"amount": 5})
        outcome = run.event("changed", {"amount": 2})
        self.assertEqual(outcome.messages, [Message("out", "changed", {"balance": 7})])
        self.assertEqual((run.state, run.state_bytes, run.sequence), (Account(7), b'{"balance":7}', 2))

    def test_rejected_event_is_settled(self):
        run = Runner(account, state=Account(1))
        with self.assertRaisesRegex(Reject, "^the balance would be -1$"):
            run.event("changed", {"amount": -2})
        self.assertEqual((run.state, run.sequence), (Account(1), 2))
        with self.assertRaises(Reject):
            run.event("changed", {"amount": -2}, end_of_sequence=True)
        self.assertTrue(run.ended)

    def test_retry_and_fault_leave_the_runner_unchanged(self):
        run = Runner(account, state=Account(1))
        with self.assertRaises(Retry) as caught:
            run.event("retry", {"amount": 1})
        self.assertEqual((caught.exception.reason, caught.exception.after_ms), ("later", 20))
        with self.assertRaises(RuntimeError):
            run.event("fault", {"amount": 1}, end_of_sequence=True)
        self.assertEqual((run.state, run.sequence, run.ended), (Account(1), 1, False))

    def test_ended_key_accepts_no_event(self):
        run = Runner(account, state=Account(1))
        run.event("closed", {"amount": 0})
        self.assertTrue(run.ended)
        self.assertIsNone(run.state)
        with self.assertRaisesRegex(AssertionError, "the key has ended before event 2"):
            run.event("changed", {"amount": 1})

    def test_data_that_does_not_decode_is_rejected(self):
        with self.assertRaises(Reject) as caught:
            Runner(account).event('chan\n"ged', b'{"amount":"1"}', content_type="text/plain")
        self.assertEqual(
            caught.exception.reason,
            'the data of this event of type "chan\\n\\"ged" (14 bytes of "text/plain") cannot be decoded: '
            '`amount`: expected int, found str "1"',
        )

    def test_state_that_does_not_decode_is_a_fault(self):
        run = Runner(account, state={"balance": None})
        with self.assertRaisesRegex(
            StateError, r"the state of this key \(16 bytes\) cannot be decoded: `balance`: expected int, found null"
        ):
            run.event("changed", {"amount": 1})

    def test_random_numbers_depend_on_the_event_only(self):
        def draw(event: Event, state: Any) -> Outcome:
            return keep().emit("out", "drawn", random.random())

        random.seed(1)
        expected = random.random()
        random.seed(1)
        run = Runner(draw)
        first = run.next_event("draw")
        values = [run.send(first).messages, run.event("draw").messages, run.send(first).messages]
        self.assertEqual(values[0], values[2])
        self.assertNotEqual(values[0], values[1])
        self.assertEqual(random.random(), expected, "the numbers of the test itself")


class Annotations(unittest.TestCase):
    def test_bytes_stay_unchanged(self):
        def handle(event: Event, state: bytes | None, data: bytes) -> Outcome:
            return put((state or b"") + data).emit("out", "raw", event.data)

        run = Runner(handle, state=b"\x00")
        self.assertEqual(run.event("raw", b"\xff").messages, [Message("out", "raw", b"\xff")])
        self.assertEqual(run.state, b"\x00\xff")

    def test_unannotated_parameters_are_json(self):
        def handle(event, state, data):
            return put([state, data])

        run = Runner(handle)
        run.event("json", {"a": 1})
        run.event("json")
        self.assertEqual(run.state, [[None, {"a": 1}], None])

    def test_handler_without_data_decodes_the_event_itself(self):
        def handle(event: Event, state: None) -> Outcome:
            return keep().emit("out", "seen", [event.decode(Change).amount, event.decode(), event.header("X")])

        message = Runner(handle).event("e", {"amount": 1}, headers=[("x", "1"), ("X", "2")]).messages[0]
        self.assertEqual(message.json(), [1, {"amount": 1}, "1"])

    def test_object_with_call_is_a_handler(self):
        class Handler:
            def __call__(self, event: Event, state: Account | None, data: Change) -> Outcome:
                return put(Account(data.amount))

        run = Runner(Handler())
        run.event("e", {"amount": 3})
        self.assertEqual(run.state, Account(3))

    def test_wrong_handler_is_refused(self):
        async def waits(event, state):
            return keep()

        def no_none(event: Event, state: Account) -> Outcome:
            return keep()

        def one(event):
            return keep()

        def unsupported(event: Event, state: Any, data: set[int]) -> Outcome:
            return keep()

        def unknown(event: Event, state: "Missing | None") -> Outcome:  # noqa: F821
            return keep()

        for handle, text in [
            (waits, "`waits` must be a plain function"),
            (no_none, "`state` of `no_none` must accept None"),
            (one, "`one` has 1 parameters"),
            (unsupported, "the annotation of `data` in `unsupported`: set[int]: the type"),
            (unknown, "the annotations of `unknown` cannot be evaluated: name 'Missing' is not defined"),
            (7, "`int` is not a function"),
        ]:
            with self.subTest(text=text), self.assertRaises(TypeError) as caught:
                Call(handle)
            self.assertIn(text, str(caught.exception))

    def test_wrong_result_is_a_fault(self):
        def handle(event, state):
            return state

        with self.assertRaisesRegex(TypeError, "`handle` returned a value of type NoneType"):
            Runner(handle).event("e")


class Messages(unittest.TestCase):
    def test_content_type_follows_the_data(self):
        types = [Message("s", "t", data).content_type for data in (b"", b"x", None, {})]
        self.assertEqual(types, ["", "application/octet-stream", "application/json", "application/json"])

    def test_attributes_are_kept(self):
        [message] = (
            keep()
            .emit("s", "t", 1, key="k", content_type="c", headers={"a": "b"}, delay_ms=5, end_of_sequence=True)
            .messages
        )
        again = Message("s", "t", 1, key="k", content_type="c", headers=[("a", "b")], delay_ms=5, end_of_sequence=True)
        self.assertEqual(message, again)
        self.assertNotEqual(message, Message("s", "t", 1))

    def test_later_changes_of_a_value_have_no_effect(self):
        value = [1]
        outcome = put(value).emit("s", "t", value)
        value.append(2)
        self.assertEqual((outcome.state, outcome.messages[0].data), (b"[1]", b"[1]"))

    def test_wrong_attribute_is_refused(self):
        for arguments, attributes in [
            ((None, "t"), {}),
            (("s", 7), {}),
            (("s", "\ud800"), {}),
            (("s", "t"), {"key": 1}),
            (("s", "t"), {"headers": {"a": 1}}),
            (("s", "t"), {"delay_ms": -1}),
            (("s", "t"), {"delay_ms": 1.5}),
        ]:
            with self.subTest(arguments=arguments, attributes=attributes):
                self.assertRaises((TypeError, ValueError), keep().emit, *arguments, **attributes)
        self.assertRaises(ValueError, Retry, "later", 2**64)

    def test_undecodable_message_raises(self):
        self.assertRaises(DecodeError, Message("s", "t", b"x").json)


if __name__ == "__main__":
    unittest.main()
