// Writes an error as text, with the frames of its stack that lie in the user's sources.

const FRAMES_LIMIT = 10;
const CAUSES_LIMIT = 3;

/** The names of the bundle's file in the stacks of QuickJS and SpiderMonkey. */
const BUNDLE = /(?:^componentize-qjs:user|(?:^|\/)ordain-handler)\.js$/;
const QUICKJS_FRAME = /^\s+at (?:(.*) \()?(.+?):(\d+)(?::\d+)?\)?$/;
const SPIDERMONKEY_FRAME = /^(.*)@(.+?):(\d+):\d+$/;

/** `files` are paths. A run `[bundle, file, source, count]` maps `count` lines of the bundle to lines of a file. */
let lines = { files: [], runs: [] };

/** Sets the map from the lines of the bundle to the lines of the sources. */
export function useLines(map) {
  lines = map;
}

/** Returns the name and the message of an error, its stack, and its causes. */
export function describeError(error) {
  let text = '';
  let current = error;
  for (let depth = 0; depth <= CAUSES_LIMIT; depth += 1) {
    text += depth === 0 ? heading(current) : `\ncaused by: ${heading(current)}`;
    if (!(current instanceof Error)) break;
    text += frames(current)
      .map((frame) => `\n    at ${frame}`)
      .join('');
    if (current.cause === undefined) break;
    current = current.cause;
  }
  return text;
}

function heading(error) {
  if (error instanceof Error) return String(error);
  return `uncaught ${error === null ? 'null' : typeof error}${thrown(error)}`;
}

function thrown(value) {
  if (value === null || value === undefined) return '';
  try {
    return `: ${typeof value === 'object' ? JSON.stringify(value) : String(value)}`;
  } catch {
    return '';
  }
}

function frames(error) {
  const found = [];
  for (const line of String(error.stack ?? '').split('\n')) {
    const [, name = '', file = '', number] = QUICKJS_FRAME.exec(line) ?? SPIDERMONKEY_FRAME.exec(line) ?? [];
    if (!BUNDLE.test(file)) continue;
    const place = sourceOf(Number(number));
    if (place === undefined) continue;
    const cleanName = name.replace(/[/<]+$/, '').replace(/^<(?:anonymous|eval)>$/, '');
    found.push(cleanName === '' ? place : `${cleanName} (${place})`);
    if (found.length === FRAMES_LIMIT) break;
  }
  return found;
}

function sourceOf(line) {
  const run = lines.runs.find(([bundle, , , count]) => line >= bundle && line < bundle + count);
  return run && `${lines.files[run[1]]}:${run[2] + line - run[0]}`;
}
