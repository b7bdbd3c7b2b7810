// Bundles a handler, the packages that it imports and the SDK into one module.

import { builtinModules } from 'node:module';
import { join, relative, resolve } from 'node:path';

import * as esbuild from 'esbuild';

import { BuildError } from './errors.js';
import { lineMap } from './lines.js';
import { SDK_FOLDER } from './paths.js';

/** The name of the bundle in the stacks of SpiderMonkey. `src/guest/stack.js` expects it. */
export const BUNDLE_NAME = 'ordain-handler.js';

/** The text in the bundle that the map of its lines replaces. */
const LINES_PLACEHOLDER = 'ordain: the map of the lines';

/** Bundles the handler in `source`. Returns the code and its source map. */
export async function bundle(source) {
  const result = await esbuild.build(options(source)).catch((failure) => {
    if (failure.errors === undefined) throw failure;
    throw new BuildError(failure.errors.map((error) => describe(error, source)).join('\n'));
  });
  for (const warning of result.warnings) console.warn(`warning: ${place(warning)}${warning.text}`);
  const [map, code] = ['.map', '.js'].map((end) => result.outputFiles.find(({ path }) => path.endsWith(end)).text);
  const lines = lineMap(JSON.parse(map), sourcePath);
  return { code: code.replace(JSON.stringify(LINES_PLACEHOLDER), JSON.stringify(lines)), map, lines };
}

function options(source) {
  return {
    stdin: { contents: entry(source), resolveDir: process.cwd(), sourcefile: join(SDK_FOLDER, 'entry.js') },
    outfile: resolve(BUNDLE_NAME),
    bundle: true,
    format: 'esm',
    platform: 'neutral',
    target: 'es2023',
    mainFields: ['module', 'main'],
    conditions: ['ordain', 'module', 'import'],
    external: ['ordain:*'],
    keepNames: true,
    charset: 'utf8',
    sourcemap: 'external',
    write: false,
    logLevel: 'silent',
    plugins: [{ name: 'ordain', setup }],
  };
}

// The globals come first, because the handler may use them at the top level of its modules.
function entry(source) {
  const guest = (name) => JSON.stringify(join(SDK_FOLDER, 'src', 'guest', name));
  return [
    `import ${guest('globals.js')};`,
    `import handle from ${JSON.stringify(resolve(source))};`,
    `import { serve } from ${guest('serve.js')};`,
    `export const handler = serve(handle, ${JSON.stringify(LINES_PLACEHOLDER)});`,
  ].join('\n');
}

function setup(plugin) {
  // The handler and the guest must share one copy of the SDK.
  plugin.onResolve({ filter: /^@ordain\/sdk$/ }, () => ({ path: join(SDK_FOLDER, 'index.js') }));
  plugin.onResolve({ filter: /^node:/ }, ({ path }) => ({ errors: [{ text: noNode(path) }] }));
}

/** Returns the path of a source relative to the working folder; undefined for a source of the SDK. */
function sourcePath(source) {
  const path = resolve(source);
  const isSdk = path.startsWith(join(SDK_FOLDER, 'src')) || path === join(SDK_FOLDER, 'entry.js');
  return isSdk ? undefined : relative(process.cwd(), path);
}

function describe(error, source) {
  if (error.text.startsWith('No matching export') && error.text.endsWith('for import "default"')) {
    return `${source} has no default export: write \`export default handler((event, state) => …)\``;
  }
  const [, path] = /^Could not resolve "(.+)"$/.exec(error.text) ?? [];
  const text = path === undefined ? error.text : unresolved(path);
  return `${place(error)}${text}${excerpt(error)}`;
}

function unresolved(path) {
  if (/^[./]/.test(path)) return `the file ${path} does not exist`;
  if (builtinModules.includes(path)) return noNode(path);
  const name = path.split('/', path.startsWith('@') ? 2 : 1).join('/');
  return `the package "${name}" is missing; install it: npm install ${name}`;
}

function noNode(path) {
  return `the module "${path}" belongs to Node.js: a handler has no Node.js modules, files or network`;
}

function place({ location }) {
  return location ? `${location.file}:${location.line}:${location.column + 1}: ` : '';
}

function excerpt({ location }) {
  if (!location) return '';
  const caret = location.lineText.slice(0, location.column).replace(/[^\t]/g, ' ');
  return `\n    ${location.lineText}\n    ${caret}${'^'.repeat(Math.max(1, location.length))}`;
}
