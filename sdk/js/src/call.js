// A call of a handler, from bytes to bytes. A component makes this call for its host, and a `Runner` for a test.

import { Failure, reject } from './failure.js';
import { ASYNC, FORMAT } from './handler.js';
import { decodeJson } from './json.js';
import { Outcome } from './outcome.js';

const JSON_FORMAT = { raw: false };

/** An event as a handler receives it. */
class Event {
  constructor(fields, bytes) {
    this.stream = fields.stream;
    this.key = fields.key;
    this.sequence = Number(fields.sequence);
    this.id = fields.id;
    this.type = fields.type;
    this.source = fields.source;
    this.timeMs = fields.timeMs == null ? undefined : Number(fields.timeMs);
    this.contentType = fields.contentType;
    this.headers = fields.headers;
    this.data = undefined;
    this.bytes = bytes;
    this.endOfSequence = fields.endOfSequence;
  }

  header(name) {
    const wanted = name.toLowerCase();
    return this.headers.find(([other]) => other.toLowerCase() === wanted)?.[1];
  }

  json(options) {
    if (this.bytes.length === 0) return undefined;
    try {
      return decodeJson(this.bytes, options);
    } catch (error) {
      throw undecodable(this, error);
    }
  }
}

/**
 * Calls the handler. `fields` is the event without its data, `bytes` the data. Throws a `Failure` if the handler
 * rejects the event or requests a retry, or if the data cannot be decoded. Throws any other error if the call has a
 * fault.
 */
export function call(handle, fields, bytes, stateBytes) {
  const format = handle[FORMAT] ?? JSON_FORMAT;
  const event = new Event(fields, bytes);
  event.data = format.raw ? event.bytes : checkData(event, format.checkData);
  const state = format.raw ? stateBytes : readState(stateBytes, format.checkState);
  const outcome = handle(event, state);
  if (outcome instanceof Outcome) return written(outcome, format);
  if (outcome instanceof Failure) throw outcome;
  throw new TypeError(noOutcome(outcome));
}

function checkData(event, check) {
  const data = event.json();
  if (check === undefined) return data;
  try {
    return check(data);
  } catch (error) {
    throw error instanceof Failure ? error : undecodable(event, error);
  }
}

function undecodable({ type, bytes, contentType }, error) {
  return reject(
    `the data of this event of type ${JSON.stringify(type)} (${bytes.length} bytes of ` +
      `${JSON.stringify(contentType)}) cannot be decoded: ${reason(error)}`,
  );
}

function readState(bytes, check) {
  if (bytes === undefined) return undefined;
  try {
    const state = decodeJson(bytes);
    return check === undefined ? state : check(state);
  } catch (error) {
    throw new TypeError(
      `the state of this key (${bytes.length} bytes) cannot be decoded: ${reason(error)}. If another version of the ` +
        'handler wrote the state, this version must be able to read that state',
    );
  }
}

function reason(error) {
  return error instanceof Error ? error.message : String(error);
}

function written(outcome, format) {
  if (!format.raw && outcome.putsJson === false) {
    throw new TypeError('the state of this handler is JSON: use `raw` instead of `handler` for a state of bytes');
  }
  return { state: outcome.change, messages: outcome.messages, complete: outcome.ends };
}

function noOutcome(value) {
  if (typeof value?.then === 'function') return ASYNC;
  const found = value === null || value === undefined ? String(value) : `a value of type ${typeof value}`;
  return `a handler must return put(…), keep() or remove(), and not ${found}`;
}
