//! The imports and exports of a core module. This module must never judge the code of a function.

use wasmparser::{Encoding, ExternalKind, Parser, Payload};

use crate::WrapError;

/// The first bytes of WebAssembly.
const MAGIC: &[u8] = b"\0asm";

/// The modules from which a handler's module may import: WASI preview 1, and the interfaces of `wit/handler.wit`.
const IMPORT_PREFIXES: [&str; 2] = ["wasi_snapshot_preview1", "ordain:handler/"];

/// The advice for imports of a known origin: the beginning of the imported module's name, and the advice.
const IMPORT_ADVICE: [(&str, &str); 5] = [
    (
        "env",
        "These functions are declared, but no file or library defines them: add the file or the library to the build",
    ),
    ("gojs", "Build the module with `GOOS=wasip1 GOARCH=wasm` instead of `GOOS=js`"),
    ("wasi_unstable", "Build the module for WASI preview 1 (`wasm32-wasip1`) or for WASI 0.2"),
    (
        "wasi:",
        "The module is built for WASI 0.2, and its compiler must make the component: see the page of the compiler on \
         components. Or build the module for WASI preview 1 (`wasip1`)",
    ),
    (
        "__wbindgen",
        "The module is built for a browser: build it for `wasm32-wasip2` without `wasm-bindgen`",
    ),
];
const OTHER_ADVICE: &str = "A handler's module may import WASI preview 1 (`wasi_snapshot_preview1`) and the interfaces \
                            of `wit/handler.wit`";

/// The imports and exports of a module.
#[derive(Debug, Default)]
pub(crate) struct ModuleSurface {
    /// The module's name and the function's name of each import.
    pub(crate) imports: Vec<(String, String)>,
    /// The exported functions.
    pub(crate) exports: Vec<String>,
}

impl ModuleSurface {
    /// Reads a module.
    pub(crate) fn read(module: &[u8]) -> Result<Self, WrapError> {
        if !module.starts_with(MAGIC) {
            return Err(WrapError::Invalid(
                "the file does not begin as WebAssembly does".to_owned(),
            ));
        }
        let mut surface = Self::default();
        for payload in Parser::new(0).parse_all(module) {
            match payload.map_err(|error| invalid(&error))? {
                Payload::Version { encoding: Encoding::Component, .. } => {
                    return Err(WrapError::AlreadyComponent);
                }
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        let import = import.map_err(|error| invalid(&error))?;
                        surface.imports.push((import.module.to_owned(), import.name.to_owned()));
                    }
                }
                Payload::ExportSection(exports) => {
                    for export in exports {
                        let export = export.map_err(|error| invalid(&error))?;
                        if export.kind == ExternalKind::Func {
                            surface.exports.push(export.name.to_owned());
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(surface)
    }
}

fn invalid(error: &wasmparser::BinaryReaderError) -> WrapError {
    WrapError::Invalid(error.to_string())
}

/// Returns an error if a module imports functions that no handler can import.
pub(crate) fn find_imports_error(imports: &[(String, String)]) -> Option<WrapError> {
    let is_known = |module: &str| IMPORT_PREFIXES.iter().any(|prefix| module.starts_with(prefix));
    let unknown: Vec<_> = imports.iter().filter(|(module, _)| !is_known(module)).collect();
    let (module, _) = unknown.first()?;
    let advice = IMPORT_ADVICE.iter().find(|(prefix, _)| module.starts_with(prefix));
    Some(WrapError::UnknownImports {
        advice: advice.map_or(OTHER_ADVICE, |(_, advice)| advice),
        imports: unknown.iter().map(|(module, name)| format!("{module}.{name}")).collect(),
    })
}
