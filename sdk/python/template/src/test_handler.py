import unittest

from ordain import Reject
from ordain.testing import Runner

from handler import Account, handle


class Balance(unittest.TestCase):
    def test_balance_changes(self):
        run = Runner(handle)
        run.event("account.deposited", {"amount_cents": 500})
        outcome = run.event("account.withdrawn", {"amount_cents": 200})
        self.assertEqual(outcome.messages[0].json(), {"balance_cents": 300})
        self.assertEqual(run.state, Account(balance_cents=300))

    def test_withdrawal_beyond_the_balance_is_rejected(self):
        run = Runner(handle, state=Account(balance_cents=100))
        with self.assertRaisesRegex(Reject, "the balance is only 100 cents"):
            run.event("account.withdrawn", {"amount_cents": 101})
        self.assertEqual(run.state, Account(balance_cents=100))

    def test_wrong_data_is_rejected(self):
        for data in (b"no JSON", {}, {"amount_cents": "5"}, {"amount_cents": 0}):
            with self.subTest(data=data), self.assertRaises(Reject):
                Runner(handle).event("account.deposited", data)


if __name__ == "__main__":
    unittest.main()
