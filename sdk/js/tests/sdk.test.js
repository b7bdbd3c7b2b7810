import assert from 'node:assert/strict';
import { test } from 'node:test';

import { decodeJson, encodeJson, Failure, handler, keep, put, raw, reject, remove, retry } from '@ordain/sdk';
import { Runner } from '@ordain/sdk/testing';

const bytes = (text) => new TextEncoder().encode(text);
const text = (data) => new TextDecoder().decode(data);
const emit = (...message) => new Runner(handler(() => keep().emit(...message))).event('any').messages[0];

test('message has defaults', () => {
  const { bytes: data, ...message } = emit('out', 'changed', { n: 1 });
  assert.equal(text(data), '{"n":1}');
  assert.deepEqual(message, {
    sink: 'out',
    key: undefined,
    type: 'changed',
    contentType: 'application/json',
    headers: [],
    data: { n: 1 },
    delayMs: undefined,
    endOfSequence: false,
  });
});

test('message keeps bytes, headers and their order', () => {
  const options = {
    key: 'k',
    contentType: 'text/plain',
    headers: [
      ['b', 1],
      ['a', '2'],
      ['b', '3'],
    ],
    delayMs: 5,
  };
  const message = emit('out', 'changed', bytes('\u0000ü'), options);
  assert.deepEqual([message.key, message.contentType, message.delayMs], ['k', 'text/plain', 5]);
  assert.deepEqual(message.headers, [
    ['b', '1'],
    ['a', '2'],
    ['b', '3'],
  ]);
  assert.equal(text(message.data), '\u0000ü');
  assert.equal(emit('out', 'changed', bytes('x')).contentType, 'application/octet-stream');
  assert.deepEqual(emit('out', 'changed', 1, { headers: { a: 'b' } }).headers, [['a', 'b']]);
});

test('message without data is empty', () => {
  const { contentType, bytes: data } = emit('out', 'changed');
  assert.deepEqual([contentType, data.length], ['', 0]);
});

test('message data is encoded at once', () => {
  const data = { n: 1 };
  const handle = handler(() => {
    const outcome = put(data).emit('out', 'changed', data);
    data.n = 2;
    return outcome;
  });
  const run = new Runner(handle);
  assert.deepEqual(run.event('any').messages[0].data, { n: 1 });
  assert.deepEqual(run.state, { n: 1 });
});

test('invalid message is a fault', () => {
  assert.throws(() => emit('', 'changed'), /the sink of a message must be a text that is not empty/);
  assert.throws(() => emit('out', ''), /the type of a message to the sink "out" must be/);
  assert.throws(() => emit('out', 'changed', 1, { delayMs: -1 }), /the delay of a message "changed" must be a whole/);
  const circular = {};
  circular.self = circular;
  assert.throws(() => emit('out', 'changed', circular), /the data of a message "changed" cannot be written as JSON/);
  assert.throws(() => emit('out', 'changed', () => 1), /JSON has no form for a value of type function/);
});

test('half of a surrogate pair is refused, except in data and reasons', () => {
  const half = 'a\ud800';
  for (const [message, name] of [
    [[half, 'changed'], 'the sink of a message'],
    [['out', half], 'the type of a message to the sink "out"'],
    [['out', 'changed', 1, { key: half }], 'the key of a message'],
    [['out', 'changed', 1, { contentType: half }], 'the content type of a message'],
    [['out', 'changed', 1, { headers: { [half]: 'x' } }], 'the name of a header'],
    [['out', 'changed', 1, { headers: { name: half } }], 'the header "name" of a message'],
  ]) {
    assert.throws(() => emit(...message), new TypeError(`${name} contains half of a surrogate pair: "a\\ud800"`));
  }
  assert.equal(emit('out', 'changed', 1, { key: '💥' }).key, '💥');
  assert.equal(text(emit('out', 'changed', half).bytes), '"a\\ud800"');
  assert.equal(reject(half).message, 'a\ufffd');
  assert.equal(retry(half).message, 'a\ufffd');
});

test('big integers keep their digits', () => {
  const source =
    '{"n":18446744073709551615,"m":-9007199254740993,"few":[1,2.5,1e30,0.12345678901234567890],"t":"9007199254740993"}';
  const value = decodeJson(bytes(source), { bigint: true });
  assert.deepEqual(value, {
    n: 18446744073709551615n,
    m: -9007199254740993n,
    few: [1, 2.5, 1e30, 0.12345678901234568],
    t: '9007199254740993',
  });
  assert.match(text(encodeJson(value)), /^\{"n":18446744073709551615,"m":-9007199254740993,"few":\[1,2\.5,1e\+30,/);
  assert.equal(decodeJson(bytes('9007199254740993')), 9007199254740992);
  assert.throws(() => decodeJson(bytes('012345678901234567890'), { bigint: true }), SyntaxError);
});

test('text that resembles the mark of an integer survives', () => {
  const value = { '\u00015': '\u00015', list: ['\u0001\u0001', 'a"\u00015', '\u0001"5'], n: 2n ** 64n };
  assert.deepEqual(decodeJson(encodeJson(value), { bigint: true }), value);
});

test('JSON in bytes that are not UTF-8 is refused', () => {
  assert.throws(() => decodeJson(Uint8Array.of(0x22, 0xff, 0x22)), /the bytes are not UTF-8/);
  assert.throws(() => decodeJson(bytes('\ufeff{}')), SyntaxError);
});

test('data that is not JSON is rejected with type, size and media type', () => {
  const run = new Runner(handler(() => put(1)));
  assert.throws(() => run.event('order.paid', bytes('{"a"')), {
    name: 'Reject',
    message: /^the data of this event of type "order.paid" \(4 bytes of "application\/json"\) cannot be decoded: /,
  });
  assert.equal(run.sequence, 2);
  assert.equal(run.state, undefined);
});

test('data that fails its check is rejected', () => {
  const data = (value) => {
    if (value?.n === undefined) throw new TypeError('"n" is missing');
    if (value.n < 0) throw reject('n is negative');
    return { n: value.n + 1 };
  };
  const run = new Runner(handler((event) => put(event.data.n), { data }));
  assert.throws(() => run.event('count', {}), { name: 'Reject', message: /\(2 bytes .*: "n" is missing$/ });
  assert.throws(() => run.event('count', { n: -1 }), { name: 'Reject', message: 'n is negative' });
  run.event('count', { n: 1 });
  assert.equal(run.state, 2);
});

test('undecodable state is a fault', () => {
  const isFault = (error) =>
    !(error instanceof Failure) && /the state of this key \(1 bytes\) .* able to read/.test(error);
  assert.throws(
    () =>
      new Runner(
        handler(() => keep()),
        { state: bytes('{') },
      ).event('any'),
    isFault,
  );
  const state = () => {
    throw new TypeError('no balance');
  };
  assert.throws(
    () =>
      new Runner(
        handler(() => keep(), { state }),
        { state: 1 },
      ).event('any'),
    isFault,
  );
});

test('raw handler receives bytes and stores bytes or JSON', () => {
  const run = new Runner(
    raw((event, state) => (state ? put({ before: text(state), json: event.json() }) : put(event.data))),
  );
  run.event('any', Uint8Array.of(0xff, 0));
  assert.deepEqual([...run.stateBytes], [0xff, 0]);
  run.event('any', { n: 1 });
  assert.deepEqual(run.state, { before: '\ufffd\u0000', json: { n: 1 } });
  assert.throws(() => run.event('any', bytes('x')), { name: 'Reject' });
});

test('bytes as the state of a JSON handler are a fault', () => {
  assert.throws(() => new Runner(handler(() => put(bytes('x')))).event('any'), /use `raw` instead of `handler`/);
});

test('async handler is a fault', () => {
  const words = /a handler must not be async/;
  assert.throws(() => handler(async () => keep()), words);
  assert.throws(() => new Runner(async () => keep()), words);
  assert.throws(() => new Runner(handler(() => Promise.resolve(keep()))).event('any'), words);
});

test('result that is no outcome is a fault', () => {
  const result = (value) => () => new Runner(handler(() => value)).event('any');
  assert.throws(result(undefined), /must return put\(…\), keep\(\) or remove\(\), and not undefined/);
  assert.throws(result({ state: 1 }), /and not a value of type object/);
  assert.throws(() => handler({}), /a handler must be a function, and not object/);
});

test('failure can be thrown or returned', () => {
  const run = new Runner(
    handler((event) => {
      if (event.type === 'reject') return reject('never');
      throw retry('later', 20);
    }),
  );
  assert.throws(() => run.event('reject'), { name: 'Reject', kind: 'reject', message: 'never' });
  assert.equal(run.sequence, 2);
  assert.throws(() => run.event('retry'), { name: 'Retry', kind: 'retry', message: 'later', afterMs: 20 });
  assert.equal(run.sequence, 2);
  assert.throws(() => retry('later', 1.5), /the delay of a retry must be a whole number of milliseconds, and not 1.5/);
});

test('event has all its fields', () => {
  const fields = {
    sequence: 7,
    id: 'e7',
    source: '/shop',
    timeMs: 12,
    contentType: 'text/json',
    headers: [
      ['Tenant', 'a'],
      ['tenant', 'b'],
    ],
    endOfSequence: true,
  };
  let received;
  const run = new Runner(
    (event) => {
      received = event;
      return keep();
    },
    { key: 'ü', stream: 'orders' },
  );
  run.event('order.paid', { n: 1 }, fields);
  const { data, bytes: raw, ...rest } = received;
  assert.deepEqual([data, text(raw)], [{ n: 1 }, '{"n":1}']);
  assert.deepEqual({ ...rest }, { ...fields, key: 'ü', stream: 'orders', type: 'order.paid' });
  assert.deepEqual([received.header('TENANT'), received.header('x')], ['a', undefined]);
  assert.deepEqual([run.ended, run.sequence], [true, 8]);
  assert.throws(() => run.event('order.paid'), /the key has ended before event 8 "order.paid"/);
});

test('runner keeps the state between events', () => {
  const run = new Runner(
    handler((event, total = 0) => {
      if (event.type === 'end') return remove().complete();
      return event.type === 'keep' ? keep() : put(total + event.data);
    }),
    { state: 40, sequence: 5 },
  );
  run.event('add', 2);
  run.event('keep');
  assert.deepEqual([run.state, run.sequence], [42, 7]);
  assert.equal(run.event('end').complete, true);
  assert.deepEqual([run.state, run.stateBytes, run.ended], [undefined, undefined, true]);
});

test('fault leaves the runner unchanged', () => {
  const run = new Runner(
    () => {
      throw new Error('broken');
    },
    { state: 1 },
  );
  assert.throws(() => run.event('any'), { message: 'broken' });
  assert.deepEqual([run.sequence, run.state], [1, 1]);
});
