/**
 * The SDK for Ordain handlers in JavaScript and TypeScript.
 *
 * A handler is the default export of a module. The handler receives an event and the state of its key, and returns the
 * effect of the event: the change of the state, and messages.
 *
 * ```ts
 * import { handler, put, reject } from '@ordain/sdk';
 *
 * type Deposit = { amount_cents: number };
 * type Account = { balance_cents: number };
 *
 * export default handler<Deposit, Account>((event, account = { balance_cents: 0 }) => {
 *   if (!(event.data?.amount_cents > 0)) throw reject('the amount must be greater than 0');
 *   const balance_cents = account.balance_cents + event.data.amount_cents;
 *   return put({ balance_cents }).emit('changes', 'account.changed', { balance_cents });
 * });
 * ```
 *
 * A call ends in one of four ways:
 *
 * | end of the call | in the handler | effect |
 * |---|---|---|
 * | an outcome | `return put(state)`, `keep()` or `remove()` | The host commits the state and the messages. |
 * | a rejection | `throw reject(reason)` | The event becomes a dead letter. The key continues with its next event. |
 * | a retry | `throw retry(reason)` | The host tries the event again later. Later events of the key wait. |
 * | a fault | any other error | The host tries the event once more, then parks the key: the key stops at this event. |
 *
 * @packageDocumentation
 */

/** An event, with its data decoded as `Data`. */
export interface Event<Data = unknown> {
  /** Name of the stream. */
  readonly stream: string;
  /** The unit of order: an order id, an account, a session. */
  readonly key: string;
  /**
   * Number of the event within its key. Usually, the number is one higher than the number of the key's previous event.
   * Exact up to `Number.MAX_SAFE_INTEGER`.
   */
  readonly sequence: number;
  /** Id of the event. Usually the producer sets the id. */
  readonly id: string;
  /** Type of the event, for example `order.paid`. */
  readonly type: string;
  /** Name of the producer (the CloudEvents attribute `source`); may be empty. */
  readonly source: string;
  /** Time of the event by the producer's clock, in ms since the Unix epoch; undefined if the producer set no time. */
  readonly timeMs: number | undefined;
  /**
   * Media type of the data, set by the producer. If the producer set no media type, the text is `application/json` for
   * an event whose attributes and data arrived in one JSON object, and empty for any other event.
   */
  readonly contentType: string;
  /**
   * Names and values of the attributes of the event that have no field of their own here, in order. A value that is
   * not text is encoded as JSON.
   */
  readonly headers: readonly (readonly [name: string, value: string])[];
  /**
   * The data. In a {@link handler}, the data is decoded from JSON; empty data is `undefined`. In a {@link raw} handler,
   * the data is the same as {@link Event.bytes}.
   *
   * The type `Data` exists only in TypeScript. The SDK does not compare the data with it: pass a check to
   * {@link handler}, or test the fields in the handler.
   */
  readonly data: Data;
  /** The bytes of the data. */
  readonly bytes: Uint8Array;
  /**
   * True if the producer marked the event as the last event of its key. The key then ends after this event, even if
   * the handler rejects the event.
   */
  readonly endOfSequence: boolean;
  /** Returns the value of the first header with this name. The comparison of names ignores ASCII case. */
  header(name: string): string | undefined;
  /**
   * Decodes the data from JSON; empty data is `undefined`. Rejects the event if the data cannot be decoded.
   *
   * @throws {@link Failure}
   */
  json<T = unknown>(options?: JsonOptions): T;
}

/** How JSON is decoded. */
export interface JsonOptions {
  /**
   * With `true`, a whole number that a `number` cannot hold without loss becomes a `bigint`. Smaller numbers remain of
   * type `number`. The default is `false`: such a number loses digits.
   */
  readonly bigint?: boolean;
}

/**
 * A handler: returns the effect of an event. `state` is the state after the key's previous event, or `undefined` if the
 * key has no state. A handler must not be async: a handler has no timers, files or network to wait for.
 */
export type Handler<Data, State> = (event: Event<Data>, state: State | undefined) => Outcome<State> | Failure;

/** Functions that check decoded values, for example the method `parse` of a schema of Zod. */
export interface Checks<Data, State> {
  /** Returns the data of an event in its checked form. If this function throws, the SDK rejects the event. */
  readonly data?: (data: unknown) => Data;
  /** Returns a state in its checked form. If this function throws, the call has a fault. */
  readonly state?: (state: unknown) => State;
}

/**
 * Marks a function as a handler whose data and state are JSON.
 *
 * If the data of an event is not JSON, the SDK rejects the event. If the state is not JSON, the call has a fault,
 * because a rejection would let the key continue with a state that the handler cannot read.
 *
 * @throws TypeError if the function is async.
 */
export declare function handler<Data = unknown, State = unknown>(
  handle: Handler<Data, State>,
  checks?: Checks<Data, State>,
): Handler<Data, State>;

/**
 * Marks a function as a handler whose data and state are bytes. {@link Event.json} and {@link decodeJson} decode JSON,
 * and {@link put} encodes a state that is not a `Uint8Array` as JSON.
 *
 * @throws TypeError if the function is async.
 */
export declare function raw(
  handle: (event: Event<Uint8Array>, state: Uint8Array | undefined) => Outcome<unknown> | Failure,
): Handler<Uint8Array, Uint8Array>;

/** The effect of one event. The host commits either the whole effect or nothing. */
export declare class Outcome<State = never> {
  private constructor();
  private readonly state: State;
  /**
   * Adds a message to a sink. The host publishes the message after the commit, at least once, always under the same id.
   *
   * @param sink Name of a sink in the host's configuration.
   * @param type Type of the message, for example `order.paid`; must not be empty.
   * @param data A `Uint8Array` stays unchanged. Without `data`, the message has no data. Any other value is encoded as
   * JSON, in which a `bigint` is a number with all its digits.
   * @throws TypeError if the value cannot be written as JSON, or if the sink or the type is empty.
   */
  emit(sink: string, type: string, data?: unknown, options?: MessageOptions): this;
  /** Ends the key after this event if `end` is true (the default). Later events of the key become dead letters. */
  complete(end?: boolean): this;
}

/** The optional fields of a message. */
export interface MessageOptions {
  /** Key of the message; the default is the key of the event. */
  readonly key?: string;
  /**
   * Media type of the data. The default is `application/json`, or `application/octet-stream` if the data is a
   * `Uint8Array`, or empty if the message has no data.
   */
  readonly contentType?: string;
  /** Names and values of the headers, in order. A list of pairs may contain a name more than once. */
  readonly headers?: Readonly<Record<string, string>> | readonly (readonly [name: string, value: string])[];
  /**
   * Minimum delay between the commit and the publishing, in ms. This release of Ordain does not support delays: the
   * host rejects an outcome that contains a message with a delay.
   */
  readonly delayMs?: number;
  /** True if the message is the last message of its key in a sequenced sink. */
  readonly endOfSequence?: boolean;
}

/** Returns an outcome that keeps the state. */
export declare function keep(): Outcome;

/**
 * Returns an outcome that replaces the state. The state is encoded at once: a later change of the object has no effect.
 *
 * @throws TypeError if the state cannot be written as JSON.
 */
export declare function put<State>(state: State): Outcome<State>;

/** Returns an outcome that removes the state: the handler receives the key's next event without a state. */
export declare function remove(): Outcome;

/** The reason why a call has no effect. {@link reject} and {@link retry} create a failure; the handler throws it. */
export declare class Failure extends Error {
  private constructor();
  /** The kind of the failure. The field `name` is `Reject` or `Retry`. */
  readonly kind: 'reject' | 'retry';
  /** Delay before the retry, in ms; undefined if the host's backoff determines the delay. */
  readonly afterMs?: number;
}

/**
 * Returns a failure that rejects the event for good: `throw reject('the order does not exist')`. The event becomes a
 * dead letter with this reason, and the key continues with its next event.
 */
export declare function reject(reason: string): Failure;

/**
 * Returns a failure after which the host retries the event: `throw retry('the rate is missing', 60_000)`. The longest
 * delay of the stream's `retry.backoff` limits `afterMs`. Without `afterMs`, the host's backoff determines the delay.
 */
export declare function retry(reason: string, afterMs?: number): Failure;

/**
 * Decodes JSON from bytes, such as the state in a {@link raw} handler.
 *
 * @throws SyntaxError if the bytes are not JSON in UTF-8.
 */
export declare function decodeJson<T = unknown>(bytes: Uint8Array, options?: JsonOptions): T;

/**
 * Encodes a value as JSON. A `bigint` becomes a number with all its digits.
 *
 * @throws TypeError if the value cannot be written as JSON.
 */
export declare function encodeJson(value: unknown): Uint8Array;
