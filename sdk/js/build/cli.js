#!/usr/bin/env node
// The command `ordain-build`: compiles a handler to a component.

import { basename, extname, join } from 'node:path';
import { parseArgs } from 'node:util';

import { build } from './build.js';
import { ENGINES } from './engines.js';
import { BuildError, UsageError } from './errors.js';

const USAGE = `usage: ordain-build SOURCE [-o FILE] [--engine ENGINE] [--source-map]

Compiles the handler in SOURCE (JavaScript or TypeScript) to a WebAssembly component.

  -o, --output FILE   the component; default: plugins/NAME.wasm, after the name of SOURCE
      --engine ENGINE the JavaScript engine in the component: ${Object.keys(ENGINES).join(' or ')}; default: quickjs
      --source-map    also writes NAME.bundle.js and its source map NAME.bundle.js.map beside the component
  -h, --help          prints this text
`;

const OPTIONS = {
  output: { type: 'string', short: 'o' },
  engine: { type: 'string', default: 'quickjs' },
  'source-map': { type: 'boolean', default: false },
  help: { type: 'boolean', short: 'h', default: false },
};

async function main() {
  const { values, positionals } = readArguments();
  if (values.help) {
    console.log(USAGE);
    return;
  }
  const [source] = positionals;
  if (positionals.length !== 1) throw new UsageError(`ordain-build needs one source file\n\n${USAGE}`);
  const engine = ENGINES[values.engine];
  if (engine === undefined) {
    const names = Object.keys(ENGINES).join(' or ');
    throw new UsageError(`the engine "${values.engine}" is unknown: --engine must be ${names}`);
  }
  const output = values.output ?? join('plugins', `${basename(source, extname(source))}.wasm`);
  if (extname(output) !== '.wasm') throw new UsageError(`the name of the component must end in .wasm: ${output}`);
  console.log(await build({ source, output, engine, sourceMap: values['source-map'] }));
}

function readArguments() {
  try {
    return parseArgs({ options: OPTIONS, allowPositionals: true });
  } catch (error) {
    throw new UsageError(`${error.message}\n\n${USAGE}`);
  }
}

try {
  await main();
} catch (error) {
  if (!(error instanceof BuildError)) throw error;
  console.error(`error: ${error.message}`);
  process.exitCode = error.exitCode;
}
