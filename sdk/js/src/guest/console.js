// The global `console`: writes to the host's log.

import { log } from 'ordain:handler/logging@0.1.0';

import { format } from './inspect.js';

/**
 * Returns a console, and the function that switches its output on. The output is off while the component is built: the
 * build runs the top level of all modules, and has no log.
 */
export function newConsole() {
  let isOn = false;
  let indent = '';
  const counts = new Map();
  const write = (level, values) => {
    if (isOn) log(level, indent === '' ? text(values) : text(values).replace(/^/gm, indent));
  };
  const at =
    (level) =>
    (...values) =>
      write(level, values);
  const count = (label = 'default') => {
    counts.set(label, (counts.get(label) ?? 0) + 1);
    write('info', [`${label}: ${counts.get(label)}`]);
  };
  const group = (...values) => {
    if (values.length > 0) write('info', values);
    indent += '  ';
  };
  const console = {
    log: at('info'),
    info: at('info'),
    debug: at('debug'),
    trace: at('trace'),
    warn: at('warn'),
    error: at('error'),
    assert: (condition, ...values) => condition || write('error', assertion(values)),
    dir: (value) => write('info', [value]),
    dirxml: at('info'),
    table: (value) => write('info', [value]),
    count,
    countReset: (label = 'default') => counts.delete(label),
    group,
    groupCollapsed: group,
    groupEnd: () => (indent = indent.slice(2)),
    // The clock does not move during a call, so a duration has no meaning.
    time() {},
    timeEnd() {},
    timeLog() {},
    clear() {},
  };
  const startLogging = () => {
    isOn = true;
    indent = '';
    counts.clear();
  };
  return { console, startLogging };
}

// A value can throw an error when its parts are read. A line of the log must not become a fault.
function text(values) {
  try {
    return format(values);
  } catch (error) {
    return `a value cannot be shown: ${error}`;
  }
}

function assertion(values) {
  if (values.length === 0) return ['assertion failed'];
  return typeof values[0] === 'string'
    ? [`assertion failed: ${values[0]}`, ...values.slice(1)]
    : ['assertion failed:', ...values];
}
