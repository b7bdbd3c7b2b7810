// Counts and hashes the events of a key, and distributes its messages among three keys.
//
// Several streams can form a chain with this handler. A checker can compute the count and the hash of each message from
// the input alone. The checker can thus verify that each event took effect once and in order.
//
// After each event, the handler emits one message to the sink with the name of the stream. The key of the message is
// the key of the event, a slash, and the remainder of the event's sequence divided by `PARTS`. The type of the message
// is `tally`, and the data is `{"key": …, "sequence": …, "count": …, "hash": "16 hexadecimal digits"}` with the key and
// the sequence of the event. `count` and `hash` cover this event and all events of its key before it. `plugins/tally`
// describes the hash.

import { type Event, handler, put } from '@ordain/sdk';

const PARTS = 3;
const FIRST_HASH = 0xcbf29ce484222325n;
const PRIME = 0x100000001b3n;

/** The state of a key. */
export type Tally = { count: number; hash: string };

export default handler<unknown, Tally>((event, before = { count: 0, hash: hex(FIRST_HASH) }) => {
  const { key, sequence } = event;
  const tally = { count: before.count + 1, hash: hex(hashEvent(BigInt(`0x${before.hash}`), event)) };
  const report = { key, sequence, ...tally };
  return put(tally).emit(event.stream, 'tally', report, { key: `${key}/${sequence % PARTS}` });
});

function hashEvent(hash: bigint, event: Event): bigint {
  const type = new TextEncoder().encode(event.type);
  for (const part of [number(event.sequence), number(type.length), type, number(event.bytes.length), event.bytes]) {
    for (const byte of part) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * PRIME);
  }
  return hash;
}

/** Returns a number as 8 bytes, little-endian. */
function number(value: number): Uint8Array {
  const bytes = new DataView(new ArrayBuffer(8));
  bytes.setBigUint64(0, BigInt(value), true);
  return new Uint8Array(bytes.buffer);
}

function hex(hash: bigint): string {
  return hash.toString(16).padStart(16, '0');
}
