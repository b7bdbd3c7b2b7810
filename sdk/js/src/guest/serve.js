// The exports of a component: calls the handler for the host, and converts the result.

import { fail } from 'ordain:handler/fault@0.1.0';

import { call } from '../call.js';
import { Failure } from '../failure.js';
import { checkHandler } from '../handler.js';
import { beginCall } from './globals.js';
import { describeError, useLines } from './stack.js';

/** Returns the interface `ordain:handler/handler`. `lines` maps the lines of the bundle to the lines of the sources. */
export function serve(handle, lines) {
  useLines(lines);
  checkHandler(handle);
  return {
    handle(event, state) {
      beginCall(event);
      // The type of u64: BigInt in SpiderMonkey, number in QuickJS.
      const u64 = typeof event.sequence === 'bigint' ? BigInt : Number;
      try {
        const outcome = call(handle, event, ownBytes(event.data), state == null ? undefined : ownBytes(state));
        return withNumbers(outcome, u64);
      } catch (error) {
        if (error instanceof Failure) throw failure(error, u64);
        fail(describeError(error));
        throw error;
      }
    },
  };
}

// SpiderMonkey creates the arguments with the classes of another realm, which `instanceof Uint8Array` does not know.
function ownBytes(bytes) {
  return bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.length);
}

function withNumbers(outcome, u64) {
  for (const message of outcome.messages) {
    if (message.delayMs !== undefined) message.delayMs = u64(message.delayMs);
  }
  return outcome;
}

function failure({ kind, message, afterMs }, u64) {
  if (kind === 'reject') return { tag: 'reject', val: message };
  return { tag: 'retry', val: { reason: message, afterMs: afterMs === undefined ? undefined : u64(afterMs) } };
}
