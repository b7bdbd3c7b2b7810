/**
 * Runs a handler in Node.js, without a host and without WebAssembly.
 *
 * ```ts
 * import assert from 'node:assert/strict';
 * import { test } from 'node:test';
 * import { Runner } from '@ordain/sdk/testing';
 * import account from './account.ts';
 *
 * test('a deposit changes the balance', () => {
 *   const run = new Runner(account);
 *   const { messages } = run.event('account.deposited', { amount_cents: 500 });
 *   assert.deepEqual(messages[0].data, { balance_cents: 500 });
 *   assert.throws(() => run.event('account.deposited', {}), { name: 'Reject' });
 * });
 * ```
 *
 * @packageDocumentation
 */

import type { Event, Handler } from './index.js';

/** The key with which a {@link Runner} begins. */
export interface RunnerOptions {
  /** The key; the default is `key`. */
  readonly key?: string;
  /** The stream; the default is `test`. */
  readonly stream?: string;
  /** The sequence of the first event; the default is 1. */
  readonly sequence?: number;
  /** The state before the first event: a `Uint8Array`, or any other value as JSON. By default, the key has no state. */
  readonly state?: unknown;
}

/** The fields of an event that a test can set. */
export type EventFields = Partial<Omit<Event, 'data' | 'bytes' | 'header' | 'json'>>;

/** A message that a handler emitted. */
export interface Message {
  readonly sink: string;
  /** Undefined if the message has the key of the event. */
  readonly key: string | undefined;
  readonly type: string;
  readonly contentType: string;
  readonly headers: readonly (readonly [name: string, value: string])[];
  /** The decoded data if the content type is JSON, the bytes if it is not, and undefined if the message has no data. */
  readonly data: any;
  /** The bytes of the data. */
  readonly bytes: Uint8Array;
  readonly delayMs: number | undefined;
  readonly endOfSequence: boolean;
}

/** The effect of an event, except the state: {@link Runner.state} returns the new state. */
export interface Effect {
  readonly messages: readonly Message[];
  /** True if the handler ended the key. */
  readonly complete: boolean;
}

/**
 * A handler with the state and the next sequence of one key.
 *
 * The runner converts data and state to bytes and back, as the host and a component do. A test therefore detects a
 * conversion that loses data.
 */
export declare class Runner<Data = unknown, State = unknown> {
  /** @throws TypeError if the function is async. */
  constructor(handle: Handler<Data, State>, options?: RunnerOptions);

  /**
   * Passes the next event of the key to the handler. A `Uint8Array` is passed as it is; any other value is encoded as
   * JSON. Without `data`, the event has no data.
   *
   * Throws the `Failure` if the handler rejects the event or requests a retry. After a retry or a fault, the runner is
   * unchanged; a rejected event counts, and its effect does not.
   *
   * @throws Error if the key has ended, because the host passes no more events of such a key to the handler.
   */
  event(type: string, data?: unknown, fields?: EventFields): Effect;

  /** The current state, decoded from JSON; undefined if the key has no state. */
  get state(): State | undefined;
  /** The bytes of the current state; undefined if the key has no state. */
  get stateBytes(): Uint8Array | undefined;
  /** True if an event or an outcome has ended the key. */
  get ended(): boolean;
  /** The sequence of the next event. */
  get sequence(): number;
}
