/** Half of a surrogate pair, which UTF-8 cannot encode. */
const HALF_SURROGATE = /[\ud800-\udfff]/gu;

/** The reason why a call of a handler has no effect. */
export class Failure extends Error {
  constructor(kind, reason, afterMs) {
    super(reason.replace(HALF_SURROGATE, '\ufffd'));
    this.name = kind === 'reject' ? 'Reject' : 'Retry';
    this.kind = kind;
    if (afterMs !== undefined) this.afterMs = afterMs;
  }
}

export function reject(reason) {
  return new Failure('reject', String(reason));
}

export function retry(reason, afterMs) {
  if (afterMs !== undefined) checkMs(afterMs, 'the delay of a retry');
  return new Failure('retry', String(reason), afterMs);
}

/** Throws if a value is no duration that the host accepts. */
export function checkMs(value, name) {
  if (!Number.isSafeInteger(value) || value < 0) {
    throw new TypeError(`${name} must be a whole number of milliseconds, and not ${String(value)}`);
  }
}

/** Returns a text that the host will receive. Throws if UTF-8 cannot encode the text. */
export function checkText(text, name) {
  if (text.search(HALF_SURROGATE) === -1) return text;
  throw new TypeError(`${name} contains half of a surrogate pair: ${JSON.stringify(text)}`);
}
