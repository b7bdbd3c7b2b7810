import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Runner } from '@ordain/sdk/testing';

import orders, { type Order, type Status } from './orders.ts';

const ALL: Status[] = ['created', 'paid', 'packed', 'shipped', 'delivered', 'cancelled', 'refunded'];

/** The valid steps, written independently of the code. A cancelled order that still exists was paid before. */
const TABLE: [Status | undefined, Status[]][] = [
  [undefined, ['created']],
  ['created', ['paid', 'cancelled']],
  ['paid', ['packed', 'cancelled']],
  ['packed', ['shipped', 'cancelled']],
  ['shipped', ['delivered']],
  ['delivered', ['refunded']],
  ['refunded', []],
  ['cancelled', ['refunded']],
];

function runner(status?: Status) {
  return new Runner(orders, { state: status && ({ status, amount_cents: 1200 } satisfies Order) });
}

test('only valid steps are accepted', () => {
  for (const [from, allowed] of TABLE) {
    for (const to of ALL) {
      const run = runner(from);
      const step = () => run.event(`order.${to}`, { amount_cents: 1200, pad: 'xxxx' });
      const name = `${from} to ${to}`;
      if (allowed.includes(to)) {
        const ends = to === 'refunded' || (from === 'created' && to === 'cancelled');
        const { messages, complete } = step();
        assert.equal(complete, ends, name);
        assert.deepEqual(run.state, ends ? undefined : { status: to, amount_cents: 1200 }, name);
        assert.equal(messages.length, to === 'created' || to === 'packed' ? 0 : 1, name);
      } else {
        assert.throws(step, { name: 'Reject' }, name);
        assert.equal(run.state?.status, from, name);
      }
    }
  }
});

test('unpaid order can be updated', () => {
  const run = runner();
  run.event('order.created', { amount_cents: 900 });
  assert.deepEqual(run.event('order.updated', { amount_cents: 900 }).messages, []);
  const [message] = run.event('order.updated', { amount_cents: 950 }).messages;
  assert.equal(new TextDecoder().decode(message.bytes), '{"order":"key","status":"created","amount_cents":950}');
  assert.deepEqual(run.state, { status: 'created', amount_cents: 950 });
  run.event('order.paid', {});
  assert.throws(() => run.event('order.updated', { amount_cents: 1 }), {
    message: 'only a created order that is not yet paid can be updated',
  });
});

test('order is processed from creation to refund', () => {
  const run = runner();
  run.event('order.created', { amount_cents: 900, items: ['book'] });
  const paid = run.event('shop.order.paid', { by: 'card' });
  assert.equal(paid.messages.length, 1);
  const [receipt] = paid.messages;
  assert.deepEqual([receipt.sink, receipt.type], ['receipts', 'order.paid']);
  assert.equal(new TextDecoder().decode(receipt.bytes), '{"order":"key","status":"paid","amount_cents":900}');
  run.event('packed');
  run.event('order.shipped', {});
  const delivered = run.event('order.delivered', {});
  assert.deepEqual([delivered.complete, delivered.messages[0].endOfSequence], [false, false]);
  const refunded = run.event('order.refunded', { why: 'broken' });
  assert.deepEqual([refunded.complete, refunded.messages[0].endOfSequence], [true, true]);
  assert.equal(run.state, undefined);
});

test('last event ends the receipts', () => {
  const { messages } = runner('shipped').event('order.delivered', {}, { endOfSequence: true });
  assert.equal(messages[0].endOfSequence, true);
});

test('state is small JSON', () => {
  const run = runner();
  run.event('order.created', { amount_cents: 1200 });
  assert.equal(new TextDecoder().decode(run.stateBytes), '{"status":"created","amount_cents":1200}');
});

test('rejection names the valid steps', () => {
  const rejects = (status: Status | undefined, type: string, data: unknown, message: string | RegExp) =>
    assert.throws(() => runner(status).event(type, data), { name: 'Reject', message });
  const bytes = (text: string) => new TextEncoder().encode(text);

  rejects('paid', 'order.shipped', {}, 'an order that is paid cannot be shipped: it can be packed or cancelled');
  rejects(undefined, 'order.paid', {}, 'an order that does not exist cannot be paid: it must be created first');
  rejects(
    undefined,
    'order.lost',
    {},
    '"order.lost" is not a step of an order: the type must end in created or paid or packed or shipped or delivered ' +
      'or cancelled or refunded',
  );
  rejects(undefined, 'order.created', {}, 'creating an order requires "amount_cents" in the data');
  rejects('created', 'order.updated', {}, 'updating an order requires "amount_cents" in the data');
  rejects(undefined, 'order.created', { amount_cents: -1 }, /whole number of at least 0, and not -1$/);
  rejects('created', 'order.paid', bytes('not JSON'), /^the data of this event of type "order.paid" \(8 bytes of /);
});
