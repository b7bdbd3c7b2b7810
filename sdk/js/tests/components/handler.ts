// The handler of the tests in this folder. The type of the event selects the behaviour.

import { handler, keep, put, reject, remove, retry } from '@ordain/sdk';

class Account {
  balance = 5n;
}

/** Counts the calls of this instance. */
let calls = 0;

const behaviours: Record<string, (data: any) => unknown> = {
  random: () => [Math.random(), Math.random(), calls],
  text(data) {
    const bytes = new TextEncoder().encode(data);
    return [bytes.length, new TextDecoder().decode(bytes) === data];
  },
  uuid: () => crypto.randomUUID(),
  bigint: () => ({ n: 18446744073709551615n }),
  log() {
    console.log('%s has', 'anna', new Account(), [1, { deep: true }]);
    console.error(new RangeError('shown'));
    return null;
  },
  fault: () => outer(),
  cause() {
    try {
      outer();
    } catch (cause) {
      throw new TypeError('the outer error', { cause });
    }
  },
  text_thrown() {
    throw 'only text';
  },
  promise: () => undefined,
  recursion: () => deeper(0),
};

function outer(): never {
  return inner();
}

function inner(): never {
  throw new Error('failed on request ☃');
}

function deeper(n: number): number {
  return 1 + deeper(n + 1);
}

export default handler<any, { total: number }>((event, state) => {
  calls += 1;
  switch (event.type) {
    case 'add':
      return put({ total: (state?.total ?? 0) + event.data.amount }).emit('out', 'added', state ?? null);
    case 'remove':
      return remove().emit('out', 'removed', state ?? null);
    case 'reject':
      throw reject('rejected on request ☃');
    case 'retry':
      throw retry('retried on request ☃', 1);
    case 'reject_half':
      throw reject('rejected with \ud800');
    case 'half_key':
      return keep().emit('out', 'half_key', null, { key: 'a\ud800' });
    case 'promise':
      return Promise.resolve(keep()) as never;
    default:
      return keep().emit('out', event.type, behaviours[event.type](event.data));
  }
});
