// The lifecycle of an order. Each key is an order.
//
// The part of an event's type after the last dot names the new status: `order.paid` makes the order *paid*. `NEXT`
// lists the valid steps. A created order can also be updated, any number of times: `order.updated` changes the amount
// and keeps the status. The handler rejects all other events.
//
// The data is empty or a JSON object. `order.created` and `order.updated` require the field `amount_cents`, a whole
// number of at least 0. The handler ignores all other fields, and the amount in all other events. It rejects any event
// with an invalid `amount_cents`.
//
// The handler emits a message to the sink `receipts` when an order is paid, shipped, delivered, cancelled or refunded,
// and when an update changes its amount. The type of the message is `order.STATUS` or `order.updated`; the data is
// `{"order": KEY, "status": …, "amount_cents": …}`.

import { type Event, handler, keep, put, reject, remove } from '@ordain/sdk';

const SINK = 'receipts';

/** The steps that each status allows. The order ends with the status `refunded`, and if it is cancelled unpaid. */
const NEXT = {
  created: ['paid', 'cancelled'],
  paid: ['packed', 'cancelled'],
  packed: ['shipped', 'cancelled'],
  shipped: ['delivered'],
  delivered: ['refunded'],
  cancelled: ['refunded'],
  refunded: [],
} as const;

const STATUSES = Object.keys(NEXT) as Status[];

const STATUSES_WITH_RECEIPT: readonly Status[] = ['paid', 'shipped', 'delivered', 'cancelled', 'refunded'];

export type Status = keyof typeof NEXT;

/** The state of a key. A step that ends the order removes the state. */
export type Order = { status: Status; amount_cents: number };

type Details = { amount_cents?: number };

/** Returns the fields of an event's data that the handler reads. */
function details(data: unknown): Details {
  if (data === undefined || data === null) return {};
  if (typeof data !== 'object' || Array.isArray(data)) throw new TypeError('the data must be a JSON object');
  const { amount_cents } = data as { amount_cents?: unknown };
  if (amount_cents === undefined || amount_cents === null) return {};
  if (typeof amount_cents !== 'number' || !Number.isSafeInteger(amount_cents) || amount_cents < 0) {
    throw new TypeError(`"amount_cents" must be a whole number of at least 0, and not ${JSON.stringify(amount_cents)}`);
  }
  return { amount_cents };
}

export default handler<Details, Order>(
  (event, order) => {
    const step = event.type.slice(event.type.lastIndexOf('.') + 1);
    return step === 'updated' ? update(event, order) : advance(event, order, step);
  },
  { data: details },
);

function advance(event: Event<Details>, order: Order | undefined, step: string) {
  const status = STATUSES.find((name) => name === step);
  if (status === undefined) {
    throw reject(
      `${JSON.stringify(event.type)} is not a step of an order: the type must end in ${STATUSES.join(' or ')}`,
    );
  }
  const allowed: readonly Status[] = order ? NEXT[order.status] : ['created'];
  if (!allowed.includes(status)) throw reject(impossible(order, status, allowed));
  const amount_cents = order?.amount_cents ?? event.data.amount_cents;
  if (amount_cents === undefined) throw reject('creating an order requires "amount_cents" in the data');

  const ended = status === 'refunded' || (order?.status === 'created' && status === 'cancelled');
  const after = { status, amount_cents };
  const outcome = ended ? remove().complete() : put(after);
  if (!STATUSES_WITH_RECEIPT.includes(status)) return outcome;
  return outcome.emit(SINK, `order.${status}`, receipt(event, after), { endOfSequence: ended || event.endOfSequence });
}

function update(event: Event<Details>, order: Order | undefined) {
  if (order?.status !== 'created') throw reject('only a created order that is not yet paid can be updated');
  const { amount_cents } = event.data;
  if (amount_cents === undefined) throw reject('updating an order requires "amount_cents" in the data');
  if (amount_cents === order.amount_cents) return keep();
  const after = { ...order, amount_cents };
  return put(after).emit(SINK, 'order.updated', receipt(event, after), { endOfSequence: event.endOfSequence });
}

function receipt({ key }: Event<Details>, order: Order) {
  return { order: key, ...order };
}

function impossible(order: Order | undefined, status: Status, allowed: readonly Status[]) {
  const right = allowed.join(' or ');
  return order
    ? `an order that is ${order.status} cannot be ${status}: it can be ${right}`
    : `an order that does not exist cannot be ${status}: it must be ${right} first`;
}
