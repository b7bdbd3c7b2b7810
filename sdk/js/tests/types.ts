// Checked by `npm run check`: a line after `@ts-expect-error` must be an error.

import { type Event, encodeJson, type Handler, handler, keep, put, raw, reject, remove, retry } from '@ordain/sdk';
import { Runner } from '@ordain/sdk/testing';

type Deposit = { amount: number };
type Account = { balance: number };

export const typed: Handler<Deposit, Account> = handler<Deposit, Account>((event, account) => {
  // @ts-expect-error: the state may be missing.
  account.balance;
  // @ts-expect-error: an event is read-only.
  event.key = 'other';
  // @ts-expect-error: the data has no such field.
  event.data.amounts;
  if (event.header('tenant') === undefined) return reject('the tenant is missing');
  if (event.sequence === 1) throw retry('the tenant is unknown', 20);
  if (event.timeMs === undefined) return keep();
  if (event.endOfSequence) return remove().emit('out', 'account.removed').complete();
  const after = { balance: (account?.balance ?? 0) + event.data.amount };
  return put(after).emit('out', 'account.changed', after, {
    key: event.source,
    headers: [['tenant', 'a']],
    endOfSequence: event.endOfSequence,
  });
});

// @ts-expect-error: the state has another type.
export const wrongState = handler<Deposit, Account>(() => put({ total: 1 }));

// @ts-expect-error: a handler is not async.
export const asynchronous = handler<Deposit, Account>(async () => keep());

// @ts-expect-error: a handler returns an outcome.
export const nothing = handler<Deposit, Account>(() => {});

export const checked = handler((event, account) => put({ balance: event.data.amount + (account?.balance ?? 0) }), {
  data: (data: unknown): Deposit => data as Deposit,
  state: (state: unknown): Account => state as Account,
});

export const bytes = raw((event: Event<Uint8Array>, state) => {
  const { amount } = event.json<Deposit>({ bigint: true });
  return put(state ?? encodeJson(amount)).emit('out', 'bytes', event.bytes, { contentType: event.contentType });
});

const run = new Runner(typed, { state: { balance: 1 } satisfies Account });
export const balance: number | undefined = run.state?.balance;
run.event('deposited', { amount: 1 }, { endOfSequence: true, headers: [['tenant', 'a']] });
// @ts-expect-error: `fields` has no such field.
run.event('deposited', { amount: 1 }, { endsOfSequence: true });
