// Tests of the command `ordain-build`.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const CLI = fileURLToPath(new URL('../build/cli.js', import.meta.url));

/** Runs `use` with a function that builds in a new folder with these files. */
function inFolder(t, files) {
  const folder = mkdtempSync(join(tmpdir(), 'ordain-js-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const write = (name, content) => {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), content);
  };
  for (const [name, content] of Object.entries(files)) write(name, content);
  const build = (...args) => {
    const { status, stdout, stderr } = spawnSync(process.execPath, [CLI, ...args], { cwd: folder, encoding: 'utf8' });
    return { status, stdout, stderr };
  };
  return { folder, write, build };
}

/** Returns the error that a build of a source prints. */
function errorOf(t, source, name = 'src/a.js') {
  const { status, stderr } = inFolder(t, { [name]: source }).build(name);
  assert.equal(status, 1, stderr);
  return stderr;
}

test('component is written and then kept while its source is the same', (t) => {
  const { folder, write, build } = inFolder(t, { 'src/a.ts': 'export default (event: { data: number }) => 0;' });
  const output = join(folder, 'plugins/a.wasm');
  const first = build('src/a.ts');
  assert.match(first.stdout, /^plugins\/a\.wasm: \d\.\d MB \(QuickJS\), built in \d+\.\d s\n$/, first.stderr);
  assert.equal(readFileSync(output).readUInt32BE(0), 0x0061736d);
  const { mtimeMs } = statSync(output);
  assert.equal(build('src/a.ts').stdout, 'plugins/a.wasm is up to date\n');
  assert.equal(statSync(output).mtimeMs, mtimeMs);
  write('src/a.ts', 'export default (event: { data: number }) => 1;');
  assert.match(build('src/a.ts', '-o', 'plugins/a.wasm').stdout, /built in/);
});

test('source map is written beside the component', (t) => {
  const { folder, build } = inFolder(t, { 'src/a.js': 'export default function named() {}' });
  assert.equal(build('src/a.js', '-o', 'out/b.wasm', '--source-map').status, 0);
  assert.match(
    readFileSync(join(folder, 'out/b.bundle.js'), 'utf8'),
    /function named\(\)[^]*sourceMappingURL=b\.bundle\.js\.map\n$/,
  );
  const map = JSON.parse(readFileSync(join(folder, 'out/b.bundle.js.map'), 'utf8'));
  assert.ok(map.sources.includes('src/a.js'));
  assert.equal(map.sourceRoot, '..');
});

test('missing file is reported', (t) => {
  const { build } = inFolder(t, {});
  assert.deepEqual(build('src/a.js'), { status: 1, stdout: '', stderr: 'error: the file src/a.js does not exist\n' });
});

test('syntax error is reported with its line', (t) => {
  const stderr = errorOf(t, 'let a = 1;\nlet b = ;\n');
  assert.equal(stderr, 'error: src/a.js:2:9: Unexpected ";"\n    let b = ;\n            ^\n');
});

test('missing package is reported with the command that installs it', (t) => {
  const stderr = errorOf(t, "import { z } from '@x/zod/mini';\nexport default () => z;");
  assert.match(stderr, /^error: src\/a\.js:1:19: the package "@x\/zod" is missing; install it: npm install @x\/zod\n/);
  assert.match(errorOf(t, "import './b.js';"), /the file \.\/b\.js does not exist/);
});

test('module of Node.js is reported', (t) => {
  for (const name of ['fs', 'node:fs']) {
    const stderr = errorOf(t, `import fs from '${name}';\nexport default () => fs;`);
    assert.match(
      stderr,
      /src\/a\.js:1:16: the module "(node:)?fs" belongs to Node\.js: a handler has no Node\.js modules/,
    );
  }
});

test('missing default export is reported', (t) => {
  const stderr = errorOf(t, 'export const handler = 1;');
  assert.equal(stderr, 'error: src/a.js has no default export: write `export default handler((event, state) => …)`\n');
});

test('error at the top level is reported with its line', (t) => {
  const stderr = errorOf(
    t,
    'const x: undefined | { y: number } = undefined;\n\nexport default () => 0;\nx.y;\n',
    'src/a.ts',
  );
  assert.match(
    stderr,
    /^error: the top level of src\/a\.ts, or of a module that it imports, failed: cannot read property 'y' of undefined\n    at src\/a\.ts:4\n$/,
  );
});

test('async handler is reported', (t) => {
  const source = "import { handler, keep } from '@ordain/sdk';\nexport default handler(async () => keep());\n";
  assert.match(errorOf(t, source), /: a handler must not be async[^\n]*\n    at src\/a\.js:2\n$/);
  assert.match(errorOf(t, 'export default async () => 0;'), /: a handler must not be async/);
});

test('output at the top level does not stop the build', (t) => {
  const { build } = inFolder(t, { 'src/a.js': 'console.warn("loaded", Math.random());\nexport default () => 0;' });
  assert.equal(build('src/a.js').status, 0);
});

test('missing engine is reported with the command that installs it', (t) => {
  const { status, stderr } = inFolder(t, { 'src/a.js': 'export default () => 0;' }).build(
    'src/a.js',
    '--engine',
    'spidermonkey',
  );
  assert.equal(status, 1);
  assert.match(
    stderr,
    /npm install --save-dev --save-exact @bytecodealliance\/componentize-js@0\.23\.0 @bytecodealliance\/preview2-shim@0\.25\.0\n$/,
  );
});

test('wrong command line is reported', (t) => {
  const { build } = inFolder(t, { 'src/a.js': '' });
  for (const [args, words] of [
    [[], /needs one source file\n\nusage: ordain-build SOURCE/],
    [['src/a.js', '--fast'], /Unknown option '--fast'[^]*usage:/],
    [['src/a.js', '--engine', 'v8'], /the engine "v8" is unknown: --engine must be quickjs or spidermonkey/],
    [['src/a.js', '-o', 'a.js'], /the name of the component must end in \.wasm: a\.js/],
  ]) {
    const { status, stderr } = build(...args);
    assert.equal(status, 2);
    assert.match(stderr, words);
  }
  assert.match(build('--help').stdout, /^usage: ordain-build/);
});
