// Reads a source map, and derives from it which line of a source each line of the bundle comes from.

const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';

/**
 * Returns the map of lines that `src/guest/stack.js` reads. `pathOf` returns the path of a source, or undefined for a
 * source whose lines the map must not contain.
 */
export function lineMap({ mappings, sources }, pathOf) {
  const paths = sources.map(pathOf);
  const files = [];
  const runs = [];
  for (const [bundleLine, source, line] of firstMappings(mappings)) {
    const path = paths[source];
    if (path === undefined) continue;
    if (!files.includes(path)) files.push(path);
    const file = files.indexOf(path);
    const last = runs.at(-1);
    const continues = last && last[1] === file && bundleLine - last[0] === last[3] && line - last[2] === last[3];
    if (continues) last[3] += 1;
    else runs.push([bundleLine, file, line, 1]);
  }
  return { files, runs };
}

/** Yields the first mapping of each line: the line of the bundle, the index of the source, and its line. */
function* firstMappings(mappings) {
  let source = 0;
  let line = 0;
  for (const [index, group] of mappings.split(';').entries()) {
    let isFirst = true;
    for (const segment of group.split(',')) {
      const fields = decodeVlq(segment);
      if (fields.length < 4) continue;
      source += fields[1];
      line += fields[2];
      if (isFirst) yield [index + 1, source, line + 1];
      isFirst = false;
    }
  }
}

function decodeVlq(text) {
  const values = [];
  let value = 0;
  let shift = 0;
  for (const character of text) {
    const digit = DIGITS.indexOf(character);
    value += (digit & 31) << shift;
    shift += 5;
    if (digit < 32) {
      values.push(value & 1 ? -(value >> 1) : value >> 1);
      value = 0;
      shift = 0;
    }
  }
  return values;
}
