// `TextEncoder` and `TextDecoder` for UTF-8, built from functions of QuickJS that are written in C: on large texts, a
// loop in JavaScript takes three times as long.

/** The number of bytes up to which `String.fromCharCode` is faster than base64. */
const SHORT_BYTES = 4096;
/** The number of characters up to which a loop is faster than base64. */
const SHORT_CHARACTERS = 64;
const NOT_ASCII = /[^\x00-\x7f]/;
const REPLACEMENT = '\ufffd';

export class TextEncoder {
  get encoding() {
    return 'utf-8';
  }

  encode(text = '') {
    return encodeUtf8(String(text));
  }

  encodeInto(text, target) {
    let read = 0;
    let written = 0;
    for (const character of String(text)) {
      const bytes = encodeUtf8(character);
      if (written + bytes.length > target.length) break;
      target.set(bytes, written);
      written += bytes.length;
      read += character.length;
    }
    return { read, written };
  }
}

export class TextDecoder {
  #fatal;
  #ignoreBom;

  constructor(label = 'utf-8', { fatal = false, ignoreBOM = false } = {}) {
    if (!/^\s*(?:utf-?8|unicode-1-1-utf-8)\s*$/i.test(label)) {
      throw new RangeError(`the encoding ${JSON.stringify(label)} is missing in QuickJS; only utf-8 is available`);
    }
    this.#fatal = Boolean(fatal);
    this.#ignoreBom = Boolean(ignoreBOM);
  }

  get encoding() {
    return 'utf-8';
  }

  get fatal() {
    return this.#fatal;
  }

  get ignoreBOM() {
    return this.#ignoreBom;
  }

  decode(input = new Uint8Array(0), { stream = false } = {}) {
    if (stream) throw new TypeError('TextDecoder in QuickJS cannot decode in parts: pass all bytes at once');
    const text = decodeUtf8(bytesOf(input), this.#fatal);
    return !this.#ignoreBom && text.startsWith('\ufeff') ? text.slice(1) : text;
  }
}

function bytesOf(input) {
  if (input instanceof Uint8Array) return input;
  return ArrayBuffer.isView(input)
    ? new Uint8Array(input.buffer, input.byteOffset, input.byteLength)
    : new Uint8Array(input);
}

function encodeUtf8(text) {
  const units = NOT_ASCII.test(text) ? unescape(encodeURIComponent(text.toWellFormed())) : text;
  if (units.length > SHORT_CHARACTERS) return Uint8Array.fromBase64(btoa(units));
  const bytes = new Uint8Array(units.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = units.charCodeAt(i);
  return bytes;
}

function decodeUtf8(bytes, fatal) {
  const units = bytes.length <= SHORT_BYTES ? String.fromCharCode.apply(null, bytes) : atob(bytes.toBase64());
  if (!NOT_ASCII.test(units)) return units;
  try {
    return decodeURIComponent(escape(units));
  } catch {
    if (fatal) throw new TypeError('the bytes are not UTF-8');
    return replaceInvalid(bytes);
  }
}

// Decodes character by character, and replaces each invalid part by U+FFFD as the Encoding Standard requires.
function replaceInvalid(bytes) {
  let text = '';
  let i = 0;
  while (i < bytes.length) {
    const length = validLength(bytes, i);
    if (length > 0) {
      text += decodeUtf8(bytes.subarray(i, i + length), true);
      i += length;
    } else {
      text += REPLACEMENT;
      i += invalidLength(bytes, i);
    }
  }
  return text;
}

/** Returns the smallest and the largest second byte, and the length, of a character that begins with this byte. */
function shape(first) {
  if (first < 0x80) return [0, 0, 1];
  if (first >= 0xc2 && first <= 0xdf) return [0x80, 0xbf, 2];
  if (first === 0xe0) return [0xa0, 0xbf, 3];
  if (first === 0xed) return [0x80, 0x9f, 3];
  if (first >= 0xe1 && first <= 0xef) return [0x80, 0xbf, 3];
  if (first === 0xf0) return [0x90, 0xbf, 4];
  if (first === 0xf4) return [0x80, 0x8f, 4];
  if (first >= 0xf1 && first <= 0xf3) return [0x80, 0xbf, 4];
  return [0, 0, 0];
}

/** Returns how many bytes of a character at `start` are valid. */
function prefixLength(bytes, start) {
  const [low, high, length] = shape(bytes[start]);
  if (length < 2) return length;
  if (!(bytes[start + 1] >= low && bytes[start + 1] <= high)) return 1;
  let valid = 2;
  while (valid < length && bytes[start + valid] >> 6 === 0b10) valid += 1;
  return valid;
}

function validLength(bytes, start) {
  const length = shape(bytes[start])[2];
  return length > 0 && prefixLength(bytes, start) === length ? length : 0;
}

function invalidLength(bytes, start) {
  return Math.max(1, prefixLength(bytes, start));
}
