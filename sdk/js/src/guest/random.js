// Random numbers that depend only on the event. The numbers are not secret.

/** The number of first results that are dropped, so that similar seeds give unlike numbers. */
const DROPPED_RESULTS = 15;

/** The text from which the random numbers of the current call derive. */
let seed = '';
/** The generator of the current call; undefined until the call needs a random number. */
let generator;

/** Makes the random numbers of the current call depend on the event. */
export function seedRandom({ stream, key, sequence }) {
  seed = `${stream.length}:${stream}${key.length}:${key}${sequence}`;
  generator = undefined;
}

/** The function `Math.random`: returns a multiple of 2^-53. */
export function random() {
  return (next() * 2 ** 21 + (next() >>> 11)) / 2 ** 53;
}

/** The function `crypto.getRandomValues`. */
export function getRandomValues(array) {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = next() >>> 24;
  return array;
}

/** The function `crypto.randomUUID`. */
export function randomUUID() {
  const bytes = getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

function next() {
  generator ??= newRandom(seed);
  return generator();
}

/** Returns a function that returns whole numbers of 32 bits. */
export function newRandom(seed) {
  let [a, b, c, d] = hash(seed);
  // The generator sfc32.
  const next = () => {
    const result = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + result) | 0;
    return result >>> 0;
  };
  for (let i = 0; i < DROPPED_RESULTS; i += 1) next();
  return next;
}

// The hash cyrb128: four numbers of 32 bits.
function hash(text) {
  let [h1, h2, h3, h4] = [1779033703, 3144134277, 1013904242, 2773480762];
  for (let i = 0; i < text.length; i += 1) {
    const unit = text.charCodeAt(i);
    h1 = h2 ^ Math.imul(h1 ^ unit, 597399067);
    h2 = h3 ^ Math.imul(h2 ^ unit, 2869860233);
    h3 = h4 ^ Math.imul(h3 ^ unit, 951274213);
    h4 = h1 ^ Math.imul(h4 ^ unit, 2716044179);
  }
  h1 = Math.imul(h3 ^ (h1 >>> 18), 597399067);
  h2 = Math.imul(h4 ^ (h2 >>> 22), 2869860233);
  h3 = Math.imul(h1 ^ (h3 >>> 17), 951274213);
  h4 = Math.imul(h2 ^ (h4 >>> 19), 2716044179);
  h1 ^= h2 ^ h3 ^ h4;
  return [h1, h2 ^ h1, h3 ^ h1, h4 ^ h1];
}
