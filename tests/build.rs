//! Makes components of the guests in WebAssembly text, in `guests/`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::Resolve;

const GUESTS: &str = "guests";
const WIT: &str = "../wit";

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed={GUESTS}");
    println!("cargo::rerun-if-changed={WIT}");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?);
    for entry in Path::new(GUESTS).read_dir()? {
        let path = entry?.path();
        let name = path.file_stem().context("a file")?.to_string_lossy().into_owned();
        let made = make(&path, &out, &name);
        made.with_context(|| format!("{} cannot be made a component", path.display()))?;
    }
    Ok(())
}

/// Makes the components of one guest. A guest whose text describes a component is only translated into binary form. A
/// guest whose text describes a core module becomes two components of the WIT world `plugin`: `NAME.wasm` with strings
/// in UTF-8, and `NAME-utf16.wasm` with strings in UTF-16. The core module itself is `NAME-core.wasm`.
fn make(path: &Path, out: &Path, name: &str) -> Result<()> {
    let wasm = wat::parse_file(path)?;
    let file = out.join(format!("{name}.wasm"));
    if std::fs::read_to_string(path)?.contains("\n(component") {
        return Ok(std::fs::write(file, wasm)?);
    }
    std::fs::write(file, component(&wasm, StringEncoding::UTF8)?)?;
    std::fs::write(out.join(format!("{name}-core.wasm")), &wasm)?;
    let file = out.join(format!("{name}-utf16.wasm"));
    Ok(std::fs::write(file, component(&wasm, StringEncoding::UTF16)?)?)
}

fn component(module: &[u8], encoding: StringEncoding) -> Result<Vec<u8>> {
    let mut module = module.to_vec();
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(WIT)?;
    let world = resolve.select_world(&[package], Some("plugin"))?;
    wit_component::embed_component_metadata(&mut module, &resolve, world, encoding)?;
    ComponentEncoder::default().module(&module)?.validate(true).encode()
}
