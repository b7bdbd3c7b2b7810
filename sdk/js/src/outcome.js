// The outcome of an event, and its messages.

import { checkMs, checkText } from './failure.js';
import { encodeJson } from './json.js';

/** The effect of one event. `change` and `messages` have the shape of the WIT, except that numbers are not BigInts. */
export class Outcome {
  constructor(change) {
    this.change = change;
    this.messages = [];
    this.ends = false;
  }

  emit(sink, type, data, options = {}) {
    this.messages.push(message(sink, type, data, options));
    return this;
  }

  complete(end = true) {
    this.ends = Boolean(end);
    return this;
  }
}

export function keep() {
  return new Outcome({ tag: 'keep' });
}

export function put(state) {
  const isJson = !(state instanceof Uint8Array);
  const outcome = new Outcome({ tag: 'put', val: isJson ? encode(state, 'the new state') : state });
  outcome.putsJson = isJson;
  return outcome;
}

export function remove() {
  return new Outcome({ tag: 'delete' });
}

function message(sink, type, data, { key, contentType, headers, delayMs, endOfSequence = false }) {
  checkName(sink, 'the sink of a message');
  checkName(type, `the type of a message to the sink ${JSON.stringify(sink)}`);
  if (delayMs !== undefined) checkMs(delayMs, `the delay of a message ${JSON.stringify(type)}`);
  return {
    sink,
    key: key === undefined ? undefined : checkText(String(key), 'the key of a message'),
    type,
    contentType: checkText(contentType ?? defaultContentType(data), 'the content type of a message'),
    headers: pairs(headers),
    data: bytesOf(data, type),
    delayMs,
    endOfSequence: Boolean(endOfSequence),
  };
}

function checkName(name, role) {
  if (typeof name !== 'string' || name === '') throw new TypeError(`${role} must be a text that is not empty`);
  checkText(name, role);
}

function defaultContentType(data) {
  if (data === undefined) return '';
  return data instanceof Uint8Array ? 'application/octet-stream' : 'application/json';
}

function bytesOf(data, type) {
  if (data === undefined) return new Uint8Array(0);
  return data instanceof Uint8Array ? data : encode(data, `the data of a message ${JSON.stringify(type)}`);
}

function encode(value, role) {
  try {
    return encodeJson(value);
  } catch (error) {
    throw new TypeError(`${role} cannot be written as JSON: ${error.message}`, { cause: error });
  }
}

function pairs(headers) {
  if (headers === undefined) return [];
  const list = Array.isArray(headers) ? headers : Object.entries(headers);
  return list.map(([name, value]) => [
    checkText(String(name), 'the name of a header'),
    checkText(String(value), `the header ${JSON.stringify(name)} of a message`),
  ]);
}
