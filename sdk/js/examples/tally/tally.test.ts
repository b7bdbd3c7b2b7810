import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Runner } from '@ordain/sdk/testing';

import tally from './tally.ts';

// `plugins/tally` contains the same example.
test('count and hash cover all events', () => {
  const run = new Runner(tally);
  const [first] = run.event('a', {}).messages;
  assert.equal(first?.key, 'key/1');
  assert.deepEqual(first?.data, { key: 'key', sequence: 1, count: 1, hash: 'ba712b9e35964256' });
  const [second] = run.event('b').messages;
  assert.equal(second?.key, 'key/2');
  assert.deepEqual(run.state, { count: 2, hash: '172c7f1ccf982eb5' });
});
