"""Tests of the description of an uncaught exception."""

import json
import unittest

from ordain import keep
from ordain.event import StateError
from ordain.fault import FRAME_LIMIT, describe
from ordain.testing import Runner

ROOT = __file__.rpartition("/")[0] + "/"


def fails(event, state):
    if event.type == "message":
        keep().emit("out", "x", {1, 2})
    if event.type == "cause":
        try:
            json.loads("x")
        except ValueError as error:
            raise KeyError("no order") from error
    if event.type == "deep":
        fails(event, state)
    if event.type == "pair":
        pair(event, state)
    raise RuntimeError("broken ☃")


def pair(event, state):
    fails(event, state)


class Descriptions(unittest.TestCase):
    def describe(self, type: str) -> list[str]:
        try:
            Runner(fails).event(type)
        except BaseException as error:
            lines = describe(error, ROOT).splitlines()
            # The frames of this test itself are the outermost frames.
            return [line for line in lines if "in describe" not in line and "Runner(fails)" not in line]
        raise AssertionError("no exception")

    def test_message_precedes_the_frames_of_the_user(self):
        message, heading, frame, line = self.describe("plain")
        self.assertEqual(message, "RuntimeError: broken ☃")
        self.assertEqual(heading, "Traceback (most recent call last):")
        self.assertRegex(frame, r'^  File "test_fault.py", line \d+, in fails$')
        self.assertEqual(line, '    raise RuntimeError("broken ☃")')

    def test_frames_of_the_sdk_and_of_the_library_are_left_out(self):
        lines = self.describe("message")
        self.assertEqual(lines[0], "TypeError: a value of type set cannot be written as JSON")
        self.assertEqual(lines[-1], '    keep().emit("out", "x", {1, 2})')

    def test_cause_follows(self):
        lines = self.describe("cause")
        self.assertEqual(lines[0], "KeyError: 'no order'")
        self.assertEqual(
            lines[-1], "caused by: json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
        )

    def test_deep_stack_is_cut(self):
        lines = self.describe("deep")
        self.assertRegex(lines[0], "^RecursionError: maximum recursion depth exceeded")
        self.assertRegex("\n".join(lines), r"fails\(event, state\)\n    … \d{3} times in a row")
        self.assertLess(len(lines), 12)

    def test_long_stack_is_cut(self):
        lines = self.describe("pair")
        self.assertRegex(lines[2], r"^  … \d+ more frames$")
        self.assertEqual(sum(line.startswith("  File") for line in lines), FRAME_LIMIT)

    def test_state_error_is_its_text(self):
        self.assertEqual(describe(StateError("the state is broken")), "the state is broken")

    def test_long_message_and_half_surrogate_are_printable(self):
        text = describe(ValueError("\ud800" + "x" * 100_000))
        self.assertTrue(text.startswith("ValueError: \\ud800xxx") and len(text.encode()) < 2100, text[:30])
