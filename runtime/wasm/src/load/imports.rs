//! Checks the imports of a component. If the host does not provide an import, the error states how to build the
//! component without the import. This module must never accept an import that the linker of `guest` does not provide.

use ordain_util::command::PrintedCommand;

use crate::guest::{FAULT_INTERFACE, LOGGING_INTERFACE};

/// An interface with types only, which the host need not implement.
const TYPES_INTERFACE: &str = "ordain:handler/types@0.1.0";
const HANDLER_PACKAGE: &str = "ordain:handler";

/// The packages of WASI 0.2 that a handler may import.
const WASI_PACKAGES: [&str; 6] =
    ["wasi:cli", "wasi:clocks", "wasi:filesystem", "wasi:io", "wasi:random", "wasi:sockets"];
const WASI_VERSION_PREFIX: &str = "0.2.";

/// Maximum number of imports that an error lists.
const LISTED_IMPORTS_LIMIT: usize = 5;

/// Checks that the host provides all imports of a component.
pub(super) fn check_imports<'a>(imports: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let refused: Vec<&str> = imports.filter(|name| !is_provided(name)).collect();
    let Some(first) = refused.first() else { return Ok(()) };
    let listed = refused.iter().take(LISTED_IMPORTS_LIMIT);
    let listed: Vec<_> = listed.map(|name| format!("`{name}`")).collect();
    let more = refused.len().saturating_sub(LISTED_IMPORTS_LIMIT);
    let more = if more > 0 { format!(" and {more} more interfaces") } else { String::new() };
    Err(format!(
        "imports {}{more}, which Ordain does not provide{}; a handler may import WASI 0.2 ({}), `{TYPES_INTERFACE}`, \
         `{LOGGING_INTERFACE}` and `{FAULT_INTERFACE}`",
        listed.join(", "),
        advice(first).map(|advice| format!(". {advice}")).unwrap_or_default(),
        WASI_PACKAGES.join(", "),
    ))
}

fn is_provided(import: &str) -> bool {
    if [TYPES_INTERFACE, LOGGING_INTERFACE, FAULT_INTERFACE].contains(&import) {
        return true;
    }
    let Some((interface, version)) = import.split_once('@') else { return false };
    WASI_PACKAGES.contains(&package(interface)) && version.starts_with(WASI_VERSION_PREFIX)
}

/// Returns the name of the package of an interface.
fn package(interface: &str) -> &str {
    interface.split(['/', '@']).next().unwrap_or_default()
}

/// Returns the way to build a component without a refused import; `None` if the import is of an unknown origin.
fn advice(import: &str) -> Option<String> {
    let package = package(import);
    let version = import.split_once('@').map(|(_, version)| version);
    let wrap = PrintedCommand::new("plugins wrap").with_place("");
    Some(match package {
        "wasi:http" => "A handler cannot send requests. componentize-js adds this import unless its options contain \
                        `disableFeatures: ['http', 'fetch-event']` (for jco: `--disable http --disable fetch-event`); \
                        in other languages, remove the HTTP client"
            .to_owned(),
        "wasi:logging" => format!("Use `{LOGGING_INTERFACE}` instead"),
        "wasi:config" => "A handler has no configuration: make the value a constant, or part of the events".to_owned(),
        "wasi:keyvalue" | "wasi:blobstore" => {
            "A handler's only storage is the state of its key: return the value in the outcome".to_owned()
        }
        HANDLER_PACKAGE => match version {
            Some("0.1.0") => "Build the component with the `wit/handler.wit` of this release".to_owned(),
            _ => "This release provides version 0.1.0: build the component with the SDK of this release".to_owned(),
        },
        _ if WASI_PACKAGES.contains(&package) => format!(
            "This release provides WASI {WASI_VERSION_PREFIX}*: build the component for `wasm32-wasip2` (Rust) or for \
             WASI preview 1 (Go `GOOS=wasip1`, C `wasm32-wasi`), and then run {wrap}"
        ),
        "env" | "wasi_snapshot_preview1" => {
            format!("The component has no adapter for this import: make the component with {wrap}")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(imports: &[&str]) -> String {
        check_imports(imports.iter().copied())
            .expect_err("an import that the host does not provide")
    }

    #[test]
    fn provided_imports_are_accepted() {
        let provided = [
            "wasi:cli/environment@0.2.99",
            "wasi:sockets/tcp@0.2.0",
            "wasi:filesystem/types@0.2.3",
            "ordain:handler/types@0.1.0",
            "ordain:handler/logging@0.1.0",
            "ordain:handler/fault@0.1.0",
        ];
        assert_eq!(check_imports(provided.into_iter()), Ok(()));
    }

    #[test]
    fn refused_import_is_explained() {
        for (import, advice) in [
            ("wasi:http/types@0.2.10", "disableFeatures: ['http', 'fetch-event']"),
            ("wasi:cli/environment@0.3.0", "`wasm32-wasip2`"),
            ("wasi:clocks/wall-clock", "GOOS=wasip1"),
            ("wasi:logging/logging@0.1.0-draft", "Use `ordain:handler/logging@0.1.0` instead"),
            ("wasi:keyvalue/store@0.2.0", "the state of its key"),
            ("ordain:handler/logging@0.2.0", "This release provides version 0.1.0"),
            ("ordain:handler/clock@0.1.0", "of this release"),
            ("wasi_snapshot_preview1", "ordain plugins wrap"),
        ] {
            let words = refusal(&["wasi:io/streams@0.2.0", import]);
            assert!(words.starts_with(&format!("imports `{import}`, which")), "{words}");
            assert!(words.contains(advice), "{words}");
            assert!(words.contains("a handler may import WASI 0.2 (wasi:cli, "), "{words}");
        }
        assert!(refusal(&["someone:else/entirely"]).contains("does not provide; a handler may"));
    }

    #[test]
    fn all_refused_imports_are_listed_up_to_the_limit() {
        let words = refusal(&["a:a/a", "wasi:io/poll@0.2.0", "b:b/b"]);
        assert!(words.starts_with("imports `a:a/a`, `b:b/b`, which"), "{words}");
        let many: Vec<String> = (0..7).map(|number| format!("a:a/f{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(refusal(&many).contains("`a:a/f4` and 2 more interfaces, which"));
    }
}
