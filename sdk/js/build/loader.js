// A loader hook of Node.js: removes the types from files in TypeScript.

import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

import { transformSync } from 'esbuild';

export async function load(url, context, nextLoad) {
  if (!/^file:.*\.m?ts$/.test(url)) return nextLoad(url, context);
  const sourcefile = fileURLToPath(url);
  const options = { loader: 'ts', format: 'esm', target: 'node18', sourcemap: 'inline', sourcefile };
  // The asynchronous function would leave a process running, for which Node.js 24 waits.
  const { code } = transformSync(await readFile(sourcefile, 'utf8'), options);
  return { format: 'module', source: code, shortCircuit: true };
}
