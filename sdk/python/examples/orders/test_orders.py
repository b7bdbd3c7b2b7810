"""Tests of each step from each status, and of whole lifecycles."""

import unittest

from ordain import Outcome, Reject
from ordain.testing import Runner

from orders import Order, Status, handle

TABLE = {
    None: "created",
    "created": "paid cancelled",
    "paid": "packed cancelled",
    "packed": "shipped cancelled",
    "shipped": "delivered",
    "delivered": "refunded",
    "refunded": "",
    "cancelled": "refunded",
}
"""The valid steps, written independently of the code. In the last row, the order was cancelled after it was paid."""

ALL = [status for status in TABLE if status]


def order(status: str, amount_cents: int = 1200) -> Order:
    return Order(Status(status), amount_cents)


def reason(run: Runner, type: str, data: object = b"") -> str:
    try:
        run.event(type, data)
    except Reject as reject:
        return reject.reason
    raise AssertionError(f"{type} is accepted")


class Steps(unittest.TestCase):
    def step(self, before: str | None, after: str) -> tuple[Outcome, Runner]:
        run = Runner(handle, state=order(before) if before else None)
        return run.event(f"order.{after}", {"amount_cents": 1200, "pad": "xxxx"}), run

    def test_only_valid_steps_are_accepted(self):
        for before, valid in TABLE.items():
            for after in ALL:
                with self.subTest(before=before, after=after):
                    if after not in valid.split():
                        with self.assertRaises(Reject):
                            self.step(before, after)
                        continue
                    outcome, run = self.step(before, after)
                    ended = after == "refunded" or (before, after) == ("created", "cancelled")
                    self.assertEqual(run.ended, ended)
                    self.assertEqual(run.state, None if ended else order(after))
                    self.assertEqual(len(outcome.messages), 0 if after in ("created", "packed") else 1)

    def test_rejected_step_keeps_the_state(self):
        run = Runner(handle, state=order("paid"))
        self.assertEqual(
            reason(run, "order.shipped"),
            "an order that is paid cannot be shipped: it can be packed or cancelled",
        )
        self.assertEqual(run.state, order("paid"))

    def test_rejection_names_the_valid_steps(self):
        self.assertEqual(
            reason(Runner(handle), "order.paid"),
            "an order that does not exist cannot be paid: it must be created first",
        )
        self.assertEqual(
            reason(Runner(handle), "order.lost", {}),
            '"order.lost" is not a step of an order: the type must end in created or paid or packed or shipped or '
            "delivered or cancelled or refunded",
        )

    def test_wrong_amount_is_rejected(self):
        for data, part in [
            ({}, 'creating an order requires "amount_cents"'),
            (b"", 'creating an order requires "amount_cents"'),
            ({"amount_cents": -1}, "amount_cents must be from 0 to 18446744073709551615, not -1"),
            ({"amount_cents": 1.5}, "`amount_cents`: expected int, found float 1.5"),
            (b"not JSON", "line 1 column 1"),
        ]:
            with self.subTest(data=data):
                self.assertIn(part, reason(Runner(handle), "order.created", data))

    def test_state_is_small_json(self):
        outcome, _ = self.step(None, "created")
        self.assertEqual(outcome.state, b'{"status":"created","amount_cents":1200}')


class Lifecycles(unittest.TestCase):
    def test_unpaid_order_can_be_updated(self):
        run = Runner(handle)
        run.event("order.created", {"amount_cents": 900})
        self.assertEqual(run.event("order.updated", {"amount_cents": 900}).messages, [])
        changed = run.event("order.updated", {"amount_cents": 950})
        self.assertEqual(changed.messages[0].data, b'{"order":"key","status":"created","amount_cents":950}')
        self.assertEqual(run.state, order("created", 950))
        run.event("order.paid", {})
        self.assertIn("only a created order", reason(run, "order.updated", {"amount_cents": 1}))

    def test_order_is_processed_from_creation_to_refund(self):
        run = Runner(handle)
        run.event("order.created", {"amount_cents": 900, "items": ["book"]})
        [receipt] = run.event("shop.order.paid", {"by": "card"}).messages
        self.assertEqual((receipt.sink, receipt.type), ("receipts", "order.paid"))
        self.assertEqual(receipt.json(), {"order": "key", "status": "paid", "amount_cents": 900})
        run.event("packed")
        run.event("order.shipped", {})
        delivered = run.event("order.delivered", {})
        self.assertFalse(run.ended or delivered.messages[0].end_of_sequence)
        refunded = run.event("order.refunded", {"why": "broken"})
        self.assertTrue(run.ended and refunded.messages[0].end_of_sequence)
        self.assertIsNone(run.state)

    def test_last_event_ends_the_receipts(self):
        run = Runner(handle, state=order("shipped", 1))
        outcome = run.event("order.delivered", {}, end_of_sequence=True)
        self.assertTrue(outcome.messages[0].end_of_sequence)


if __name__ == "__main__":
    unittest.main()
