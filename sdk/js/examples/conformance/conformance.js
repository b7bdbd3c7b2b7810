// The handler with which Ordain's tests compare the SDKs of all languages. The type of the event selects the behaviour.

import { decodeJson, keep, put, raw, reject, remove, retry } from '@ordain/sdk';

const SINK = 'out';

/** The size of one piece of memory that `grow` takes. */
const PIECE_BYTES = 1 << 20;

const behaviours = {
  echo: (event) => keep().emit(SINK, 'echoed', event.bytes, { contentType: event.contentType, headers: event.headers }),
  describe: (event) => keep().emit(SINK, 'described', description(event)),
  put: (event) => put(event.bytes),
  get(_, state) {
    if (state === undefined) throw reject('no state');
    return keep().emit(SINK, 'state', state);
  },
  delete: () => remove(),
  add,
  // A number in JavaScript would lose the last digits of a large whole number.
  exact: (event) => keep().emit(SINK, 'exact', { n: event.json({ bigint: true }).n }),
  clock: () => keep().emit(SINK, 'clock', { now_ms: Date.now() }),
  random: () => keep().emit(SINK, 'random', { values: [Math.random(), Math.random()] }),
  log() {
    for (const level of ['trace', 'debug', 'info', 'warn', 'error']) console[level](`${level} ☃`);
    return keep();
  },
  print() {
    console.log('printed ☃');
    console.error('complained ☃');
    return keep();
  },
  many,
  reject() {
    throw reject('rejected on request ☃');
  },
  retry() {
    throw retry('retried on request ☃', 20);
  },
  fault() {
    throw new Error('failed on request ☃');
  },
  complete: () => keep().emit(SINK, 'completed').complete(),
  end: ({ endOfSequence }) => keep().emit(SINK, 'ended', { end: endOfSequence }, { endOfSequence }),
  spin() {
    for (;;);
  },
  grow() {
    const pieces = [];
    for (;;) pieces.push(new Uint8Array(PIECE_BYTES).fill(1));
  },
};

function description(event) {
  return {
    stream: event.stream,
    key: event.key,
    sequence: event.sequence,
    id: event.id,
    type: event.type,
    source: event.source,
    time_ms: event.timeMs ?? null,
    content_type: event.contentType,
    end_of_sequence: event.endOfSequence,
    headers: event.headers,
  };
}

function add(event, state) {
  const { amount } = event.json() ?? {};
  if (!Number.isSafeInteger(amount)) throw reject('"amount" must be a whole number');
  const { total } = state === undefined ? { total: 0 } : sumIn(state);
  if (!Number.isSafeInteger(total)) throw new TypeError('the state has no total');
  const sum = { total: total + amount };
  return put(sum).emit(SINK, 'added', sum);
}

function sumIn(state) {
  try {
    return decodeJson(state);
  } catch (error) {
    throw new TypeError(`the state of this key cannot be decoded: ${error.message}`);
  }
}

function many(event) {
  const outcome = keep();
  for (let index = 0; index < event.json().messages; index += 1) {
    outcome.emit(SINK, 'many', { index }, { key: `${event.key}/${index}` });
  }
  return outcome;
}

export default raw(function conformance(event, state) {
  if (!Object.hasOwn(behaviours, event.type)) throw reject(`unknown type ${event.type}`);
  return behaviours[event.type](event, state);
});
