// Builds a component: bundles the sources, embeds the bundle into an engine, and writes the file.

import { createHash } from 'node:crypto';
import { mkdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, extname, join, relative } from 'node:path';

import { bundle } from './bundle.js';
import { BuildError } from './errors.js';
import { WIT_FILE } from './paths.js';
import { customSection } from './section.js';

/** The name of the section at the end of a component that identifies the input of the build. */
const SECTION_NAME = 'ordain-build';

/** Builds a component. Returns a line that reports the result. */
export async function build({ source, output, engine, sourceMap }) {
  const start = performance.now();
  await checkSource(source);
  const bundled = await bundle(source);
  await mkdir(dirname(output), { recursive: true });
  if (sourceMap) await writeSourceMap(output, bundled);
  const section = customSection(SECTION_NAME, await fingerprint(bundled.code, engine));
  if (await endsWith(output, section)) return `${output} is up to date`;
  const component = await engine.componentize(bundled, source);
  await replaceFile(output, Buffer.concat([component, section]));
  const seconds = ((performance.now() - start) / 1000).toFixed(1);
  return `${output}: ${(component.length / 1e6).toFixed(1)} MB (${engine.title}), built in ${seconds} s`;
}

async function checkSource(source) {
  const found = await stat(source).catch(() => undefined);
  if (found === undefined) throw new BuildError(`the file ${source} does not exist`);
  if (!found.isFile()) throw new BuildError(`${source} is not a file: pass the source file of the handler`);
}

async function writeSourceMap(output, { code, map }) {
  const path = join(dirname(output), `${basename(output, extname(output))}.bundle.js`);
  await writeFile(path, `${code}//# sourceMappingURL=${basename(path)}.map\n`);
  // The map names the sources relative to the working folder.
  const sourceRoot = relative(dirname(path), process.cwd());
  await writeFile(`${path}.map`, JSON.stringify({ ...JSON.parse(map), sourceRoot }));
}

// The engines write other bytes in each build, although the input is the same. A component with the same input stays
// unchanged, so that Ordain does not treat it as a new version.
async function fingerprint(code, engine) {
  const hash = createHash('sha256');
  for (const part of [await readFile(WIT_FILE), engine.title, engine.version, code]) hash.update(part).update('\0');
  return hash.digest();
}

async function endsWith(path, bytes) {
  const file = await readFile(path).catch(() => Buffer.alloc(0));
  return file.subarray(-bytes.length).equals(bytes);
}

// Ordain may read the folder at any time: the file gets its name only when it is complete.
async function replaceFile(path, bytes) {
  const draft = join(dirname(path), `.${basename(path)}.${process.pid}`);
  try {
    await writeFile(draft, bytes);
    await rename(draft, path);
  } finally {
    await rm(draft, { force: true });
  }
}
