// `node --import @ordain/sdk/typescript` runs files in TypeScript: Node.js before version 22.18 cannot.

import { register } from 'node:module';

register('./build/loader.js', import.meta.url);
process.setSourceMapsEnabled(true);
