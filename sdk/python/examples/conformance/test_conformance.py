"""Tests of each action without WebAssembly."""

import unittest

from ordain import Outcome, Reject, Retry, StateError
from ordain.testing import Runner

from conformance import ACTIONS, handle


def emitted(outcome: Outcome) -> object:
    [message] = outcome.messages
    return message.json()


class Actions(unittest.TestCase):
    def test_data_and_state_are_unchanged(self):
        run = Runner(handle)
        [echoed] = run.event("echo", b"\xff", content_type="a/b", headers=[("b", "1"), ("a", "2")]).messages
        self.assertEqual(echoed.data, b"\xff")
        self.assertEqual((echoed.content_type, echoed.headers), ("a/b", [("b", "1"), ("a", "2")]))
        run.event("put", b"\x00")
        self.assertEqual(run.event("get").messages[0].data, b"\x00")
        run.event("delete")
        with self.assertRaisesRegex(Reject, "^no state$"):
            run.event("get")

    def test_event_is_described(self):
        described = emitted(Runner(handle).event("describe", time_ms=None, headers=[("a", "b")]))
        self.assertEqual((described["time_ms"], described["headers"]), (None, [["a", "b"]]))
        self.assertEqual((described["key"], described["sequence"], described["type"]), ("key", 1, "describe"))

    def test_total_is_kept(self):
        run = Runner(handle)
        run.event("add", {"amount": 5})
        self.assertEqual(emitted(run.event("add", {"amount": -2})), {"total": 3})
        with self.assertRaises(Reject):
            run.event("add", {"amount": "1"})
        with self.assertRaises(StateError):
            Runner(handle, state=b"x").event("add", {"amount": 1})

    def test_large_number_is_exact(self):
        self.assertEqual(emitted(Runner(handle).event("exact", {"n": 2**64 - 1})), {"n": 2**64 - 1})

    def test_failures_have_their_reason(self):
        for type, kind, reason in [
            ("reject", Reject, "rejected on request ☃"),
            ("retry", Retry, "retried on request ☃"),
            ("fault", RuntimeError, "failed on request ☃"),
            ("other", Reject, "unknown type other"),
        ]:
            with self.subTest(type=type), self.assertRaisesRegex(kind, f"^{reason}$"):
                Runner(handle).event(type)

    def test_key_ends(self):
        run = Runner(handle)
        self.assertEqual(emitted(run.event("end")), {"end": False})
        self.assertTrue(Runner(handle).event("end", end_of_sequence=True).messages[0].end_of_sequence)
        self.assertEqual(run.event("complete").messages[0].data, b"")
        self.assertTrue(run.ended)

    def test_every_other_action_succeeds(self):
        run = Runner(handle)
        self.assertEqual(len(run.event("many", {"messages": 3}).messages), 3)
        for type in ("clock", "random", "log", "print"):
            self.assertEqual(run.event(type).change, "keep")
        self.assertEqual(len(ACTIONS), 19)


if __name__ == "__main__":
    unittest.main()
