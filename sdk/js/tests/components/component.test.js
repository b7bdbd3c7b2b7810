// Tests of components in a real host. The variable `ORDAIN` contains the path of the program `ordain`. The tests of
// SpiderMonkey run if its packages are installed.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';

const SDK = fileURLToPath(new URL('../..', import.meta.url));
const ORDAIN = process.env.ORDAIN;
const HANDLER = readFileSync(new URL('handler.ts', import.meta.url), 'utf8');
const LARGE = 'ü☃💥'.repeat(20000);

const EVENTS = [
  ['random', 'random'],
  ['random', 'random'],
  ['random-again', 'random'],
  ['text', 'text', 'a'],
  ['text', 'text', 'ü☃💥\u0000\u2028'],
  ['text', 'text', LARGE],
  ['uuid', 'uuid'],
  ['bigint', 'bigint'],
  ['log', 'log'],
  ['state ü', 'add', { amount: 2 }],
  ['state ü', 'add', { amount: 40 }],
  ['state ü', 'remove'],
  ['state ü', 'remove'],
  ['reject', 'reject'],
  ['reject', 'bigint'],
  ['no-json', 'add', undefined, { datacontenttype: 'application/json', data_base64: 'eyI=' }],
  ['half', 'reject_half'],
  ['half-key', 'half_key'],
  ['retry', 'retry'],
  ['fault', 'fault'],
  ['cause', 'cause'],
  ['text-thrown', 'text_thrown'],
  ['promise', 'promise'],
  ['recursion', 'recursion'],
];

for (const engine of ['quickjs', 'spidermonkey']) {
  const skip = engine === 'spidermonkey' && !isInstalled() && 'its packages are not installed';
  describe(engine, { skip }, () => componentTests(engine));
}

function isInstalled() {
  try {
    return Boolean(import.meta.resolve('@bytecodealliance/componentize-js'));
  } catch {
    return false;
  }
}

function componentTests(engine) {
  let host;
  before(() => (host = run(engine)));
  after(() => rmSync(host.folder, { recursive: true }));

  const messages = (key) => host.messages.filter(({ subject }) => subject === key);
  const data = (key) => messages(key).map((message) => message.data);

  test('state is kept, replaced and removed', () => {
    assert.deepEqual(data('state ü'), [null, { total: 2 }, { total: 42 }, null]);
  });

  test('texts and bytes are converted without loss', () => {
    assert.deepEqual(data('text'), [[1, true], [13, true], [new TextEncoder().encode(LARGE).length, true]]);
  });

  test('big integer keeps its digits', () => {
    assert.ok(host.output.includes('{"n":18446744073709551615}'));
  });

  test('random numbers depend on the event', () => {
    const [[first, second], third] = [data('random'), data('random-again')].flat();
    assert.equal(new Set([first, second, ...third.slice(0, 2)]).size, 4);
    assert.match(data('uuid')[0], /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/);
  });

  test('console writes to the log', () => {
    assert.match(host.log, /INFO.*anna has Account \{ balance: 5n \} \[ 1, \{ deep: true \} \]/);
    assert.match(host.log, /ERROR.*RangeError: shown/);
    assert.ok(host.log.includes(`at log (${place('new RangeError')})`), host.log);
  });

  test('rejection becomes a dead letter and the key continues', () => {
    assert.match(host.dead, /rejected on request ☃/);
    assert.equal(data('reject').length, 1);
  });

  test('half of a surrogate pair is replaced in a reason and refused in a key', () => {
    assert.match(host.dead, /rejected with \ufffd/);
    assert.match(host.reason('half-key'), /the key of a message contains half of a surrogate pair: "a\\ud800"/);
  });

  test('undecodable data is rejected', () => {
    assert.match(host.dead, /the data of this event of type \\?"add\\?" \(2 bytes of \\?"application\/json\\?"\) cannot be/);
  });

  test('retry is repeated and then parks the key', () => {
    assert.match(host.reason('retry'), /retried on request ☃/);
  });

  test('fault shows the message and the frames of the sources', () => {
    const reason = words(host.reason('fault'));
    const stack = `at inner (${place('failed on request')}) at outer (${place('return inner()')})`;
    assert.ok(reason.includes(`Error: failed on request ☃ ${stack}`), reason);
    assert.doesNotMatch(reason, /unreachable|componentize|backtrace|serve\.js/);
  });

  test('cause of an error follows the error', () => {
    const reason = words(host.reason('cause'));
    assert.ok(reason.includes(`TypeError: the outer error at cause (${place('the outer error')})`), reason);
    assert.ok(reason.includes(`caused by: Error: failed on request ☃ at inner (${place('failed on request')})`), reason);
  });

  test('thrown text is a fault', () => assert.match(host.reason('text-thrown'), /uncaught string: only text/));

  test('promise is a fault', () => assert.match(host.reason('promise'), /a handler must not be async/));

  test('endless recursion is a fault with a short stack', () => {
    const reason = host.reason('recursion');
    assert.match(reason, /call stack|too much recursion/);
    assert.ok(reason.split('deeper').length <= 12, reason);
  });
}

/** Returns a text with one space between its words. */
function words(text) {
  return text.replace(/\s+/g, ' ');
}

/** Returns the file and the line of the handler that contains `text`. */
function place(text) {
  const before = HANDLER.slice(0, HANDLER.indexOf(text));
  return `handler.ts:${before.split('\n').length}`;
}

/** Builds the handler, and runs the host with all events. */
function run(engine) {
  assert.ok(ORDAIN, 'the variable ORDAIN must contain the path of the program `ordain`');
  const folder = mkdtempSync(join(tmpdir(), 'ordain-js-'));
  const start = (program, args) => {
    const { status, stdout, stderr } = spawnSync(program, args, { cwd: folder, encoding: 'utf8', maxBuffer: 1 << 28 });
    return { status, stdout, stderr };
  };
  writeFileSync(join(folder, 'handler.ts'), HANDLER);
  const built = start(process.execPath, [join(SDK, 'build/cli.js'), 'handler.ts', '--engine', engine]);
  assert.equal(built.status, 0, built.stderr);
  writeFileSync(join(folder, 'ordain.toml'), CONFIGURATION);
  writeFileSync(join(folder, 'events.ndjson'), lines());
  const { status, stdout, stderr } = start(ORDAIN, ['run', '--once']);
  assert.equal(status, 0, stderr);
  const query = (...args) => start(ORDAIN, args).stdout;
  return {
    folder,
    output: stdout,
    messages: stdout.trim().split('\n').map((line) => JSON.parse(line)),
    log: stderr,
    dead: query('dead', 'list', 'handler', '--json'),
    reason: (key) => JSON.parse(query('keys', 'show', 'handler', key, '--json')).trouble.error,
  };
}

const CONFIGURATION = `
[streams.handler]
handler = "handler"
source = { kind = "file", path = "events.ndjson" }

[streams.handler.retry]
attempts = 2

[sinks]
out = { kind = "file", path = "-" }
`;

function lines() {
  const counts = new Map();
  return EVENTS.map(([subject, type, data, more]) => {
    const sequence = (counts.get(subject) ?? 0) + 1;
    counts.set(subject, sequence);
    const event = { specversion: '1.0', id: `${subject}/${sequence}`, source: '/test', type, subject };
    return `${JSON.stringify({ ...event, sequence: String(sequence), data, ...more })}\n`;
  }).join('');
}
