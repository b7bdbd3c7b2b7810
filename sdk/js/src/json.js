// Conversions between JSON and bytes.

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Begins a text that contains the digits of a whole number. A text that begins with the mark gets a second mark. */
const MARK = '\u0001';
const ESCAPED_MARK = '\\u0001';

/** A text in JSON, with the colon if the text is the name of a member. */
const TEXT = /"(?:[^"\\]|\\.)*"(?:\s*:)?/g;
/** A text as above, or a whole number with at least 16 digits and without fraction and exponent. */
const TEXT_OR_LONG_INTEGER = new RegExp(`${TEXT.source}|-?[1-9]\\d{15,}(?![\\d.eE])`, 'g');

export function decodeJson(bytes, { bigint = false } = {}) {
  const text = decodeText(bytes);
  return bigint ? parseWithBigInts(text) : JSON.parse(text);
}

export function encodeJson(value) {
  const text = stringify(value);
  if (text === undefined) throw new TypeError(`JSON has no form for a value of type ${typeof value}`);
  return encoder.encode(text);
}

function decodeText(bytes) {
  try {
    return decoder.decode(bytes);
  } catch {
    throw new SyntaxError('the bytes are not UTF-8');
  }
}

function parseWithBigInts(text) {
  const marked = text.replace(TEXT_OR_LONG_INTEGER, (token, at) => {
    if (token[0] === '"') return markText(token);
    const isPartOfNumber = at > 0 && '.eE+'.includes(text[at - 1]);
    return isPartOfNumber || Number.isSafeInteger(Number(token)) ? token : `"${ESCAPED_MARK}${token}"`;
  });
  return marked === text ? JSON.parse(text) : JSON.parse(marked, (_, value) => unmark(value));
}

function markText(token) {
  const isName = token.endsWith(':');
  return token.startsWith(`"${ESCAPED_MARK}`) && !isName ? `"${ESCAPED_MARK}${token.slice(1)}` : token;
}

function unmark(value) {
  if (typeof value !== 'string' || value[0] !== MARK) return value;
  return value[1] === MARK ? value.slice(1) : BigInt(value.slice(1));
}

// `JSON.stringify` throws at a BigInt. Only then does the slower way with a replacer pay.
function stringify(value) {
  try {
    return JSON.stringify(value);
  } catch (error) {
    let found = false;
    const marked = JSON.stringify(value, (_, part) => {
      if (typeof part === 'string' && part[0] === MARK) return MARK + part;
      if (typeof part !== 'bigint') return part;
      found = true;
      return `${MARK}${part}`;
    });
    if (!found) throw error;
    return marked.replace(TEXT, unmarkText);
  }
}

function unmarkText(token) {
  const start = `"${ESCAPED_MARK}`;
  if (!token.startsWith(start) || token.endsWith(':')) return token;
  const rest = token.slice(start.length);
  return rest.startsWith(ESCAPED_MARK) ? `"${rest}` : rest.slice(0, -1);
}
