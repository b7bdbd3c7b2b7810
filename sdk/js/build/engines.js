// The JavaScript engines that a component can contain.

import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { BUNDLE_NAME } from './bundle.js';
import { BuildError } from './errors.js';
import { SDK_FOLDER, WIT_FILE } from './paths.js';

const SPIDERMONKEY_PACKAGES = ['@bytecodealliance/componentize-js', '@bytecodealliance/preview2-shim'];

/** A line of the bundle in a report of an engine. */
const BUNDLE_PLACE = /\(?(?:componentize-qjs:user|[^\s(@]*ordain-handler)\.js:(\d+)(?::\d+)?\)?/g;

const { dependencies, peerDependencies } = JSON.parse(await readFile(join(SDK_FOLDER, 'package.json'), 'utf8'));

/** Each engine turns a bundle into a component. */
export const ENGINES = {
  quickjs: {
    title: 'QuickJS',
    version: dependencies['componentize-qjs'],
    componentize: quickJs,
  },
  spidermonkey: {
    title: 'SpiderMonkey',
    version: peerDependencies[SPIDERMONKEY_PACKAGES[0]],
    componentize: spiderMonkey,
  },
};

async function quickJs({ code, lines }, source) {
  const { componentize } = await import('componentize-qjs');
  const options = { witPath: WIT_FILE, world: 'ordain:handler/plugin', jsSource: code, sync: true };
  try {
    return (await componentize(options)).component;
  } catch (error) {
    throw startError(source, error.message.replace(/^.*module evaluation: /s, ''), lines);
  }
}

async function spiderMonkey({ code, lines }, source) {
  const { componentize } = await importSpiderMonkey();
  const folder = await mkdtemp(join(tmpdir(), 'ordain-build-'));
  try {
    const sourcePath = join(folder, BUNDLE_NAME);
    await writeFile(sourcePath, code);
    const features = { disableFeatures: ['http', 'fetch-event'] };
    return (await componentize({ sourcePath, witPath: WIT_FILE, worldName: 'plugin', ...features })).component;
  } catch (error) {
    throw startError(source, spiderMonkeyReport(error.message), lines);
  } finally {
    await rm(folder, { recursive: true });
  }
}

async function importSpiderMonkey() {
  const [componentizeJs, shim] = SPIDERMONKEY_PACKAGES;
  try {
    // componentize-js needs the shim, but does not declare this dependency.
    import.meta.resolve(shim);
    return await import(componentizeJs);
  } catch (error) {
    if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error;
    const packages = SPIDERMONKEY_PACKAGES.map((name) => `${name}@${peerDependencies[name]}`).join(' ');
    throw new BuildError(
      `the engine SpiderMonkey is not installed; install it: npm install --save-dev --save-exact ${packages}`,
    );
  }
}

/** Brings a report of SpiderMonkey into the form of QuickJS: the message, then a line for each frame. */
function spiderMonkeyReport(text) {
  const [, owner, name] = /unknown imported function: '(.+?)' '(.+?)'/.exec(text) ?? [];
  if (name !== undefined) return `the function ${name} of ${owner} is available only during a call of the handler`;
  const [, error, stack] = /top-level script\n\S+ (.*?)\nAdditionally.*?Stack:\n(.*)$/s.exec(text) ?? [];
  if (error === undefined) return text;
  const frames = stack.replace(/^\s*(.*)@(.+)$/gm, (_, frame, place) => `    at ${frame || '<anonymous>'} (${place})`);
  return `${error}\n${frames}`;
}

// The build runs the top level of all modules, so that each instance starts with the result.
function startError(source, report, lines) {
  const text = report
    .replace(BUNDLE_PLACE, (_, line) => originalPlace(Number(line), lines))
    .replace(/\n[^\n]*\(the SDK\)/g, '')
    .replace(/ at <anonymous> \((.*)\)/g, ' at $1')
    .replace(/^Error: /, '');
  return new BuildError(`the top level of ${source}, or of a module that it imports, failed: ${text.trim()}`);
}

function originalPlace(line, { files, runs }) {
  const run = runs.find(([bundle, , , count]) => line >= bundle && line < bundle + count);
  return run ? `(${files[run[1]]}:${run[2] + line - run[0]})` : '(the SDK)';
}
