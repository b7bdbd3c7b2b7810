//! Tests of modules that become components, and of modules that are refused.

use wasmparser::{Parser, Payload};

use super::*;

/// A module with the smallest surface of a handler, with other fields.
fn handler(fields: &str) -> Vec<u8> {
    module(&format!(
        r#"{fields}
        (memory (export "memory") 2)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) unreachable)
        (func (export "{HANDLE_EXPORT}") (param i32) (result i32) unreachable)"#
    ))
}

fn module(fields: &str) -> Vec<u8> {
    wat::parse_str(format!("(module {fields})")).expect("the text of a module")
}

/// Returns the names that a component imports.
fn imports(component: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload.expect("a component") {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentImportSection(imports) if depth == 0 => {
                let imports = imports.into_iter().map(|import| import.expect("an import"));
                names.extend(imports.map(|import| import.name.name.to_owned()));
            }
            _ => {}
        }
    }
    names
}

fn refusal(module: &[u8]) -> String {
    wrap(module).expect_err("the module cannot become a component").to_string()
}

#[test]
fn module_without_imports_becomes_a_component_without_functions_of_the_host() {
    let component = wrap(&handler("")).expect("a component");
    assert_eq!(imports(&component), ["ordain:handler/types@0.1.0"]);
}

#[test]
fn imports_of_the_module_become_imports_of_the_component() {
    let component = wrap(&handler(
        r#"(import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32)))
        (import "ordain:handler/fault@0.1.0" "fail" (func (param i32 i32)))"#,
    ));
    let names = imports(&component.expect("a component"));
    assert!(names.contains(&"ordain:handler/fault@0.1.0".to_owned()), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("wasi:random/random@0.2.")), "{names:?}");
    assert!(!names.contains(&"ordain:handler/logging@0.1.0".to_owned()), "{names:?}");
}

#[test]
fn module_with_the_metadata_of_an_older_contract_becomes_a_component() {
    let older = WIT.replace("import fault;", "");
    let start = older.find("/// Ends a call because of a fault").expect("the interface");
    let end = older.find("interface handler").expect("the next interface");
    let older = format!("{}{}", &older[..start], &older[end..]);
    let mut resolve = Resolve::default();
    let package = resolve.push_str("handler.wit", &older).expect("a package");
    let world = resolve.select_world(&[package], Some(WORLD)).expect("a world");
    let mut module =
        handler(r#"(import "ordain:handler/logging@0.1.0" "log" (func (param i32 i32 i32)))"#);
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
        .expect("a module with metadata");
    let names = imports(&wrap(&module).expect("a component"));
    assert_eq!(names, ["ordain:handler/logging@0.1.0", "ordain:handler/types@0.1.0"]);
}

#[test]
fn component_is_refused() {
    let component = wrap(&handler("")).expect("a component");
    assert!(refusal(&component).starts_with("is a component already"));
}

#[test]
fn file_without_a_module_is_refused() {
    let module = handler("");
    for bytes in [&b""[..], b"(module)", &module[..module.len() - 5]] {
        assert!(refusal(bytes).starts_with("is not a WebAssembly module, or is damaged"));
    }
}

#[test]
fn program_is_refused_with_the_missing_flag() {
    let words = refusal(&handler(r#"(func (export "_start"))"#));
    for part in ["`_start`", "-buildmode=c-shared", "-mexec-model=reactor"] {
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn module_without_a_handler_is_refused_with_its_exports() {
    let words = refusal(&module(r#"(func (export "handle")) (memory (export "memory") 1)"#));
    assert!(words.contains("it exports `handle`."), "{words}");
    assert!(refusal(&module("")).contains("it exports nothing."));
    let many: Vec<_> = (0..12).map(|number| format!("(func (export \"f{number}\"))")).collect();
    let many = many.concat();
    assert!(refusal(&module(&many)).contains("`f9`, and 2 more."));
}

#[test]
fn unknown_import_is_refused_with_advice() {
    for (import, advice) in [
        ("env", "no file or library defines them"),
        ("gojs", "GOOS=wasip1"),
        ("wasi:cli/stdout@0.2.0", "its compiler must make the component"),
        ("wasi_unstable", "WASI preview 1"),
        ("other", "may import WASI preview 1"),
    ] {
        let words = refusal(&handler(&format!(r#"(import "{import}" "f" (func))"#)));
        assert!(words.contains(&format!("imports `{import}.f`, which")), "{words}");
        assert!(words.contains(advice), "{words}");
    }
}

#[test]
fn function_of_another_type_is_refused() {
    let words = refusal(&module(&format!("(func (export \"{HANDLE_EXPORT}\"))")));
    assert!(words.starts_with("does not fit the interfaces of a handler: "), "{words}");
}
