//! Makes a component of the demo's handler, which is written in the WebAssembly text format. A component from Rust would
//! need the WebAssembly target of the compiler, which a plain build of the host does not need.

use std::path::PathBuf;

use anyhow::{Context, Result};
use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::Resolve;

const HANDLER: &str = "src/orders.wat";
const WIT: &str = "../../wit";

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed={HANDLER}");
    println!("cargo::rerun-if-changed={WIT}");
    let mut module = wat::parse_file(HANDLER)?;
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(WIT)?;
    let world = resolve.select_world(&[package], Some("plugin"))?;
    wit_component::embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    let component = ComponentEncoder::default().module(&module)?.validate(true).encode()?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?);
    Ok(std::fs::write(out.join("orders.wasm"), component)?)
}
