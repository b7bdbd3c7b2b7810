/** Returns a custom section of a WebAssembly file, with its header. */
export function customSection(name, content) {
  const nameBytes = Buffer.from(name);
  const body = Buffer.concat([leb128(nameBytes.length), nameBytes, content]);
  return Buffer.concat([Buffer.from([0]), leb128(body.length), body]);
}

function leb128(value) {
  const bytes = [];
  let rest = value;
  while (rest >= 0x80) {
    bytes.push((rest & 0x7f) | 0x80);
    rest >>>= 7;
  }
  return Buffer.from([...bytes, rest]);
}
