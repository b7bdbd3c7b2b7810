// The functions that mark a function as a handler.

/** The property of a handler that contains how its data and its state are decoded. */
export const FORMAT = Symbol('ordain.format');

export function handler(handle, checks = {}) {
  return mark(handle, { raw: false, checkData: checks.data, checkState: checks.state });
}

export function raw(handle) {
  return mark(handle, { raw: true });
}

/** Throws if a value cannot be a handler. */
export function checkHandler(handle) {
  if (typeof handle !== 'function') {
    throw new TypeError(`a handler must be a function, and not ${handle === null ? 'null' : typeof handle}`);
  }
  if (Object.prototype.toString.call(handle) === '[object AsyncFunction]') {
    throw new TypeError(ASYNC);
  }
}

export const ASYNC =
  'a handler must not be async: a handler has no timers, files or network, so there is nothing to wait for. ' +
  'Remove `async` and `await`';

function mark(handle, format) {
  checkHandler(handle);
  return Object.defineProperty(handle, FORMAT, { value: format, configurable: true });
}
