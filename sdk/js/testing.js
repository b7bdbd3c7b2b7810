// Runs a handler without a host. `testing.d.ts` documents this module.

import { call } from './src/call.js';
import { Failure } from './src/failure.js';
import { checkHandler } from './src/handler.js';
import { decodeJson, encodeJson } from './src/json.js';

export class Runner {
  #handle;
  #key;
  #stream;
  #state;
  #sequence;
  #ended = false;

  constructor(handle, { key = 'key', stream = 'test', sequence = 1, state } = {}) {
    checkHandler(handle);
    this.#handle = handle;
    this.#key = key;
    this.#stream = stream;
    this.#sequence = sequence;
    this.#state = state === undefined ? undefined : toBytes(state);
  }

  event(type, data, fields = {}) {
    const sequence = fields.sequence ?? this.#sequence;
    const event = {
      stream: this.#stream,
      key: this.#key,
      sequence,
      id: `${this.#key}/${sequence}`,
      type,
      source: '/test',
      timeMs: 0,
      contentType: 'application/json',
      headers: [],
      endOfSequence: false,
      ...fields,
    };
    return this.#send(event, data === undefined ? new Uint8Array(0) : toBytes(data));
  }

  get state() {
    return this.#state && decodeJson(this.#state);
  }

  get stateBytes() {
    return this.#state?.slice();
  }

  get ended() {
    return this.#ended;
  }

  get sequence() {
    return this.#sequence;
  }

  #send(event, data) {
    if (this.#ended) throw new Error(`the key has ended before event ${event.sequence} ${JSON.stringify(event.type)}`);
    try {
      const outcome = call(this.#handle, event, data, this.stateBytes);
      this.#settle(event);
      this.#ended ||= outcome.complete;
      this.#apply(outcome.state);
      return { messages: outcome.messages.map(readable), complete: outcome.complete };
    } catch (error) {
      if (error instanceof Failure && error.kind === 'reject') this.#settle(event);
      throw error;
    }
  }

  // A test may send an event with an earlier sequence. Such an event does not advance the key.
  #settle({ sequence, endOfSequence }) {
    this.#sequence = Math.max(this.#sequence, sequence + 1);
    this.#ended = endOfSequence;
  }

  #apply({ tag, val }) {
    if (tag === 'put') this.#state = val.slice();
    if (tag === 'delete') this.#state = undefined;
  }
}

function toBytes(value) {
  return value instanceof Uint8Array ? value.slice() : encodeJson(value);
}

function readable({ sink, key, type, contentType, headers, data, delayMs, endOfSequence }) {
  const isJson = /^application\/(?:[\w.+-]+\+)?json\b/i.test(contentType);
  const value = data.length === 0 ? undefined : isJson ? decodeJson(data) : data;
  return { sink, key, type, contentType, headers, data: value, bytes: data, delayMs, endOfSequence };
}
