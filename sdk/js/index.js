// The public API. `index.d.ts` documents it.
export { Failure, reject, retry } from './src/failure.js';
export { handler, raw } from './src/handler.js';
export { decodeJson, encodeJson } from './src/json.js';
export { Outcome, keep, put, remove } from './src/outcome.js';
