//! Makes a component of a core module, for languages whose compilers produce only core modules. The component has the
//! interfaces of `wit/handler.wit`. An adapter translates the module's imports of WASI preview 1 to WASI 0.2. This
//! crate must never access a file.

mod module;

use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata, metadata};
use wit_parser::Resolve;

use module::{ModuleSurface, find_imports_error};

/// The contract between Ordain and a handler.
const WIT: &str = include_str!("../../../wit/handler.wit");
/// The world of a handler in [`WIT`].
const WORLD: &str = "plugin";
/// The core function that a component exports as `handle`. Its name is the interface, `#` and the function.
const HANDLE_EXPORT: &str = "ordain:handler/handler@0.1.0#handle";

/// Maximum number of names that an error lists.
const LISTED_NAMES_LIMIT: usize = 10;

/// The reason why a file cannot become a component.
#[derive(Debug, thiserror::Error)]
pub enum WrapError {
    /// The file is a component already.
    #[error("is a component already; copy the file into the folder of handlers as it is")]
    AlreadyComponent,
    /// The file is not WebAssembly, or it is damaged.
    #[error("is not a WebAssembly module, or is damaged or truncated: {0}")]
    Invalid(String),
    /// The module is a program that runs once, from its function `_start`.
    #[error(
        "is a program that runs once (it exports `_start`), but a handler is a library (a reactor). Add the flag that \
         builds a library: for Go, `-buildmode=c-shared`; for C with `zig cc` or clang, `-mexec-model=reactor`; for \
         Zig, `-mexec-model=reactor -fno-entry`"
    )]
    Command,
    /// The module does not export the function of a handler.
    #[error(
        "does not export the function `{HANDLE_EXPORT}`, which each SDK exports; it exports {}. Link the SDK, and \
         declare a handler; check that the linker keeps exported functions",
        quoted_list(exports)
    )]
    NoHandler {
        /// The functions that the module exports.
        exports: Vec<String>,
    },
    /// The module imports functions that no handler can import.
    #[error("imports {}, which Ordain does not provide. {advice}", quoted_list(imports))]
    UnknownImports {
        /// The imports: for each, the name of the imported module, a dot and the name of the function.
        imports: Vec<String>,
        /// The way to remove the imports.
        advice: &'static str,
    },
    /// The module does not fit the interfaces of a handler.
    #[error("does not fit the interfaces of a handler: {0}")]
    WrongInterface(String),
}

/// Makes a component of a core module.
pub fn wrap(module: &[u8]) -> Result<Vec<u8>, WrapError> {
    let surface = ModuleSurface::read(module)?;
    if surface.exports.iter().any(|export| export == "_start") {
        return Err(WrapError::Command);
    }
    if let Some(error) = find_imports_error(&surface.imports) {
        return Err(error);
    }
    if !surface.exports.iter().any(|export| export == HANDLE_EXPORT) {
        return Err(WrapError::NoHandler { exports: surface.exports });
    }
    encode(module).map_err(|error| WrapError::WrongInterface(format!("{error:#}")))
}

fn encode(module: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("handler.wit", WIT)?;
    let world = resolve.select_world(&[package], Some(WORLD))?;
    // The bindings of another version of the contract leave their own metadata, which would contradict this contract.
    let mut module = metadata::decode(module)?.0.unwrap_or_else(|| module.to_vec());
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    ComponentEncoder::default()
        .module(&module)?
        .validate(true)
        .adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER)?
        .encode()
}

/// Returns names in backticks, separated by commas: all names up to the limit, and the number of the other names.
/// Returns `nothing` if there are no names.
fn quoted_list(names: &[String]) -> String {
    let listed = names.iter().take(LISTED_NAMES_LIMIT);
    let mut listed: Vec<_> = listed.map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        listed.push("nothing".to_owned());
    }
    let more = names.len().saturating_sub(LISTED_NAMES_LIMIT);
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    listed.join(", ")
}

#[cfg(test)]
mod tests;
