// Tests of the parts of a component that need no engine.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { format, inspect } from '../src/guest/inspect.js';
import { newRandom, random, randomUUID, seedRandom } from '../src/guest/random.js';
import { describeError, useLines } from '../src/guest/stack.js';
import * as quick from '../src/guest/text.js';

// QuickJS has these functions. Node.js has them only in later releases.
Uint8Array.fromBase64 ??= (text) => new Uint8Array(Buffer.from(text, 'base64'));
Uint8Array.prototype.toBase64 ??= function toBase64() {
  return Buffer.from(this).toString('base64');
};
String.prototype.toWellFormed ??= function toWellFormed() {
  return Buffer.from(String(this)).toString();
};

test('texts are encoded and decoded as the platform does', () => {
  const parts = ['', 'a', 'ü', '☃', '💥', '\u0000', '\u2028', '\ud800', 'x'.repeat(70)];
  for (const first of parts) {
    for (const second of parts) {
      const text = `${first}${second}`;
      const expected = new TextEncoder().encode(text);
      assert.deepEqual(new quick.TextEncoder().encode(text), expected);
      const long = new TextEncoder().encode(text.repeat(5000));
      for (const bytes of [expected, long]) {
        assert.equal(new quick.TextDecoder().decode(bytes), new TextDecoder().decode(bytes));
      }
    }
  }
});

test('invalid bytes are replaced as the platform does, or refused', () => {
  const interesting = [
    0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xdf, 0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xff,
  ];
  for (const a of interesting) {
    for (const b of interesting) {
      for (const c of interesting) {
        const bytes = Uint8Array.of(a, b, c, 0x80, 0x41);
        const expected = new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
        assert.equal(new quick.TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes), expected, String(bytes));
        const fatal = new quick.TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
        if (expected.includes('\ufffd')) assert.throws(() => fatal.decode(bytes), TypeError);
        else assert.equal(fatal.decode(bytes), expected);
      }
    }
  }
});

test('byte order mark is removed unless it is wanted', () => {
  const bytes = Uint8Array.of(0xef, 0xbb, 0xbf, 0x41);
  assert.equal(new quick.TextDecoder().decode(bytes), 'A');
  assert.equal(new quick.TextDecoder('utf8', { ignoreBOM: true }).decode(bytes), '\ufeffA');
  assert.equal(new quick.TextDecoder().decode(bytes.buffer), 'A');
});

test('text is encoded into a buffer as far as it fits', () => {
  const target = new Uint8Array(4);
  assert.deepEqual(new quick.TextEncoder().encodeInto('aü☃', target), { read: 2, written: 3 });
  assert.deepEqual([...target], [0x61, 0xc3, 0xbc, 0]);
});

test('other encodings are refused', () => {
  assert.throws(() => new quick.TextDecoder('latin1'), /only utf-8 is available/);
});

test('random numbers depend on the seed and are spread', () => {
  const series = (seed, length) => Array.from({ length }, newRandom(seed));
  assert.deepEqual(series('a1', 5), series('a1', 5));
  const firsts = new Set();
  const buckets = new Array(16).fill(0);
  for (let i = 0; i < 16000; i += 1) {
    const [first] = series(`3:key${i}`, 1);
    firsts.add(first);
    buckets[first >>> 28] += 1;
  }
  assert.ok(firsts.size > 15990, `${firsts.size} different numbers`);
  for (const count of buckets) assert.ok(count > 850 && count < 1150, `${buckets}`);
});

test('values are shown as in Node.js', () => {
  class Account {
    balance = -0;
  }
  const circular = { name: 'x' };
  circular.self = circular;
  const expectations = [
    [{ a: 1n, 'b-c': 'x', list: [1, undefined, null] }, '{ a: 1n, "b-c": "x", list: [ 1, undefined, null ] }'],
    [new Account(), 'Account { balance: -0 }'],
    [new Map([['a', new Set([1])]]), 'Map(1) { "a" => Set(1) { 1 } }'],
    [Uint8Array.of(1, 2), 'Uint8Array(2) [ 1, 2 ]'],
    [circular, '{ name: "x", self: [Circular] }'],
    [[[[[[1]]]]], '[ [ [ [ [Array] ] ] ] ]'],
    [new Date(0), '1970-01-01T00:00:00.000Z'],
    [function f() {}, '[Function f]'],
    [Account, '[class Account]'],
    [Symbol('s'), 'Symbol(s)'],
    [/a/g, '/a/g'],
    [Object.create(null), '[Object: null prototype] {}'],
    [[], '[]'],
  ];
  for (const [value, expected] of expectations) assert.equal(inspect(value), expected);
  assert.equal(inspect({ text: 'x'.repeat(60), more: 'y'.repeat(60) }).split('\n').length, 4);
  assert.match(inspect(new Array(200).fill(0)), /… 100 more/);
});

test('arguments of a log line are joined or substituted', () => {
  assert.equal(format(['a', 1, { b: 'c' }]), 'a 1 { b: "c" }');
  assert.equal(format(['%s has %d of %j%%', 'x', '7', [1], 'rest']), 'x has 7 of [1]% rest');
  assert.equal(format(['100%', 'x']), '100% x');
  assert.equal(format(['%s']), '%s');
});

test('stack contains only frames of the sources', () => {
  useLines({
    files: ['src/a.ts', 'src/b.ts'],
    runs: [
      [10, 0, 100, 5],
      [20, 1, 7, 1],
    ],
  });
  const described = (stack, options) => describeError(Object.assign(new RangeError('broken', options), { stack }));
  const quickJs = [
    '    at inner (componentize-qjs:user.js:12:5)',
    '    at map (native)',
    '    at <anonymous> (componentize-qjs:user.js:20:9)',
    '    at handle (componentize-qjs:user.js:99:9)',
  ].join('\n');
  assert.equal(described(quickJs), 'RangeError: broken\n    at inner (src/a.ts:102)\n    at src/b.ts:7');
  const spiderMonkey = 'inner@ordain-handler.js:12:5\nouter/<@ordain-handler.js:20:1\nx@/tmp/initializer.js:256:29\n';
  assert.equal(described(spiderMonkey), 'RangeError: broken\n    at inner (src/a.ts:102)\n    at outer (src/b.ts:7)');
  const deep = 'f@ordain-handler.js:10:1\n'.repeat(50);
  assert.equal(described(deep).split('\n').length, 11);
  const cause = Object.assign(new Error('deeper'), { stack: 'g@ordain-handler.js:11:1' });
  assert.equal(described('', { cause }), 'RangeError: broken\ncaused by: Error: deeper\n    at g (src/a.ts:101)');
});

test('thrown value that is no error is described', () => {
  assert.equal(describeError('text'), 'uncaught string: text');
  assert.equal(describeError({ code: 5 }), 'uncaught object: {"code":5}');
  assert.equal(describeError(null), 'uncaught null');
  assert.equal(describeError(undefined), 'uncaught undefined');
});

test('random numbers of a call depend only on the event', () => {
  const event = { stream: 'orders', key: 'ü', sequence: 7 };
  const draw = (fields) => {
    seedRandom({ ...event, ...fields });
    return [random(), random(), randomUUID()];
  };
  const first = draw({});
  assert.deepEqual(draw({}), first);
  for (const fields of [{ sequence: 8 }, { key: 'u' }, { stream: 'order', key: 'sü' }]) {
    assert.notDeepEqual(draw(fields), first);
  }
  assert.ok(first[0] >= 0 && first[0] < 1);
  assert.match(first[2], /^[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/);
});
