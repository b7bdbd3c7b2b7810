import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Runner } from '@ordain/sdk/testing';

import handler from './{{name}}.js';

test('deposit and withdrawal change the balance', () => {
  const run = new Runner(handler);
  run.event('account.deposited', { amount_cents: 500 });
  const { messages } = run.event('account.withdrawn', { amount_cents: 200 });
  assert.equal(messages.length, 1);
  assert.deepEqual(messages[0].data, { balance_cents: 300 });
  assert.deepEqual(run.state, { balance_cents: 300 });
});

test('withdrawal beyond the balance is rejected', () => {
  const run = new Runner(handler, { state: { balance_cents: 100 } });
  assert.throws(() => run.event('account.withdrawn', { amount_cents: 101 }), {
    name: 'Reject',
    message: 'the balance is only 100 cents',
  });
  assert.deepEqual(run.state, { balance_cents: 100 });
});

test('invalid data is rejected', () => {
  const run = new Runner(handler);
  assert.throws(() => run.event('account.deposited', { amount_cents: '5' }), {
    name: 'Reject',
    message: /amount_cents/,
  });
});
