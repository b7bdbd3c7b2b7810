// Prepares the globals of both engines. The bundle evaluates this module before all others.

import { newConsole } from './console.js';
import { getRandomValues, random, randomUUID, seedRandom } from './random.js';
import * as text from './text.js';

const isQuickJs = typeof globalThis.TextEncoder === 'undefined';
const { console, startLogging } = newConsole();

globalThis.console = console;

// QuickJS stores the state of its generator in the component: each new instance would return the same numbers.
// SpiderMonkey's generator is not available while the component is built.
Math.random = random;

if (isQuickJs) {
  const { TextDecoder, TextEncoder } = text;
  Object.assign(globalThis, { TextDecoder, TextEncoder, crypto: { getRandomValues, randomUUID } });
}

/** Prepares the globals for a call with this event. */
export function beginCall(event) {
  startLogging();
  seedRandom(event);
}
