"""Compares the hash with the example in `plugins/tally`."""

import unittest

from ordain.testing import Runner

from tally import Tally, handle


class Counted(unittest.TestCase):
    def test_count_and_hash_cover_all_events(self) -> None:
        run = Runner(handle)
        [message] = run.event("a", b"{}").messages
        report = {"key": "key", "sequence": 1, "count": 1, "hash": "ba712b9e35964256"}
        self.assertEqual((message.key, message.json()), ("key/1", report))
        [message] = run.event("b", b"").messages
        self.assertEqual(message.key, "key/2")
        self.assertEqual(run.state, Tally(2, "172c7f1ccf982eb5"))


if __name__ == "__main__":
    unittest.main()
