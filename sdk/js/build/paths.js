import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The folder of the SDK. */
export const SDK_FOLDER = dirname(dirname(fileURLToPath(import.meta.url)));

/** The contract between the host and a handler. */
export const WIT_FILE = join(SDK_FOLDER, 'wit', 'handler.wit');
