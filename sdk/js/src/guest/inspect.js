// Writes any value as text for people, as the console of Node.js does.

import { describeError } from './stack.js';

const DEPTH_LIMIT = 4;
const ENTRIES_LIMIT = 100;
const LINE_CHARACTERS = 100;
const NAME = /^[A-Za-z_$][\w$]*$/;

/** Returns the text of the arguments of a call such as `console.log`. */
export function format(values) {
  const [first, ...rest] = values;
  if (typeof first !== 'string' || rest.length === 0 || !first.includes('%')) return values.map(show).join(' ');
  const text = first.replace(/%([sdifjoOc%])/g, (directive, kind) => {
    if (kind === '%') return '%';
    return rest.length === 0 ? directive : substitute(kind, rest.shift());
  });
  return [text, ...rest.map(show)].join(' ');
}

function substitute(kind, value) {
  switch (kind) {
    case 's':
      return typeof value === 'symbol' ? String(value) : show(value);
    case 'd':
      return typeof value === 'bigint' ? `${value}n` : String(Number(value));
    case 'i':
      return typeof value === 'bigint' ? `${value}n` : String(Number.parseInt(value, 10));
    case 'f':
      return String(Number.parseFloat(value));
    case 'j':
      return JSON.stringify(value);
    case 'c':
      return '';
    default:
      return inspect(value);
  }
}

function show(value) {
  return typeof value === 'string' ? value : inspect(value);
}

/** Returns a value as text. */
export function inspect(value, parents = []) {
  switch (typeof value) {
    case 'string':
      return JSON.stringify(value);
    case 'bigint':
      return `${value}n`;
    case 'function':
      return `[${/^class\b/.test(String(value)) ? 'class' : 'Function'} ${value.name || '(anonymous)'}]`;
    case 'object':
      return value === null ? 'null' : inspectObject(value, parents);
    default:
      return Object.is(value, -0) ? '-0' : String(value);
  }
}

function inspectObject(value, parents) {
  if (parents.includes(value)) return '[Circular]';
  if (value instanceof Error) return describeError(value);
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? 'Invalid Date' : value.toISOString();
  if (value instanceof RegExp) return String(value);
  const name = className(value);
  if (parents.length >= DEPTH_LIMIT) return Array.isArray(value) ? '[Array]' : `[${name || 'Object'}]`;
  const inside = [...parents, value];
  const show = (part) => inspect(part, inside);
  if (Array.isArray(value)) return list('', '[', value, show, ']');
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
    return list(`${name}(${value.length}) `, '[', value, show, ']');
  }
  if (value instanceof Set) return list(`Set(${value.size}) `, '{', value, show, '}');
  if (value instanceof Map) {
    return list(`Map(${value.size}) `, '{', value, ([key, part]) => `${show(key)} => ${show(part)}`, '}');
  }
  const prefix = name === 'Object' ? '' : `${name || '[Object: null prototype]'} `;
  const entry = (key) => `${NAME.test(key) ? key : JSON.stringify(key)}: ${show(value[key])}`;
  return list(prefix, '{', Object.keys(value), entry, '}');
}

function className(value) {
  const prototype = Object.getPrototypeOf(value);
  return prototype === null ? '' : (prototype.constructor?.name ?? 'Object');
}

function list(prefix, open, values, show, close) {
  const parts = [];
  let more = 0;
  for (const value of values) {
    if (parts.length < ENTRIES_LIMIT) parts.push(show(value));
    else more += 1;
  }
  if (more > 0) parts.push(`… ${more} more`);
  if (parts.length === 0) return `${prefix}${open}${close}`;
  const line = `${prefix}${open} ${parts.join(', ')} ${close}`;
  if (line.length <= LINE_CHARACTERS && !line.includes('\n')) return line;
  return `${prefix}${open}\n${parts.join(',\n').replace(/^/gm, '  ')}\n${close}`;
}
