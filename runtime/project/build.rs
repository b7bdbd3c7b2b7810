//! Embeds the templates of new projects: the files of each template, and the files of the SDK that a project contains.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use toml::{Table, Value};

/// The languages, each with the folder of its SDK and the folder of its template within that folder.
const LANGUAGES: [(&str, &str, &str); 6] = [
    ("rust", "rust", "template"),
    ("js", "js", "template/js"),
    ("ts", "js", "template/ts"),
    ("python", "python", "template"),
    ("go", "go", "template"),
    ("c", "c", "template"),
];

/// The file of a template that lists the files of the SDK for a new project. It is in the folder of the template, or in
/// the folder above if several languages share an SDK.
const SDK_LIST: &str = "README-for-new.txt";

/// The folder of the SDK in a project.
const SDK_FOLDER: &str = "vendor/ordain-sdk";

/// Folders that tools create in a template or an SDK.
const IGNORED_FOLDERS: [&str; 6] =
    ["node_modules", "target", "plugins", "__pycache__", ".venv", "ordain-data"];

/// Size limit of an embedded file, in bytes: every file is part of the program `ordain`.
const FILE_LIMIT_BYTES: u64 = 200_000;

fn main() -> Result<()> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("CARGO_MANIFEST_DIR")?;
    let root = fs::canonicalize(Path::new(&manifest).join("../.."))?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", root.join("Cargo.toml").display());
    println!("cargo::rerun-if-changed={}", root.join("sdk").display());
    let mut code = String::from("pub(crate) const TEMPLATES: &[Template] = &[\n");
    for (language, sdk, template) in LANGUAGES {
        let sdk = root.join("sdk").join(sdk);
        let template = sdk.join(template);
        if template.is_dir() {
            let written = write_template(&mut code, &root, &out, language, &sdk, &template);
            written.with_context(|| format!("the template for {language}"))?;
        }
    }
    code += "];\n";
    Ok(fs::write(out.join("templates.rs"), code)?)
}

/// Appends the Rust expression of one template.
fn write_template(
    code: &mut String,
    root: &Path,
    out: &Path,
    language: &str,
    sdk: &Path,
    template: &Path,
) -> Result<()> {
    writeln!(code, "Template {{ language: {language:?}, files: &[")?;
    for (name, path) in files(template)? {
        if name != SDK_LIST {
            write_file(code, &name, &path)?;
        }
    }
    writeln!(code, "], sdk: &[")?;
    for (name, path) in sdk_files(sdk, template)? {
        let is_manifest = language == "rust" && name == format!("{SDK_FOLDER}/Cargo.toml");
        let path = if is_manifest { vendored_manifest(root, out, &path)? } else { path };
        write_file(code, &name, &path)?;
    }
    writeln!(code, "] }},")?;
    Ok(())
}

fn write_file(code: &mut String, name: &str, path: &Path) -> Result<()> {
    let size = path.metadata().with_context(|| path.display().to_string())?.len();
    ensure!(size <= FILE_LIMIT_BYTES, "{} has more than {FILE_LIMIT_BYTES} bytes", path.display());
    let path = path.to_str().context("a path that is not UTF-8")?;
    writeln!(code, "TemplateFile {{ path: {name:?}, content: include_bytes!({path:?}) }},")?;
    Ok(())
}

/// Returns the files that a project copies from the SDK, each with its path in the project.
fn sdk_files(sdk: &Path, template: &Path) -> Result<Vec<(String, PathBuf)>> {
    let lists = [template.join(SDK_LIST), sdk.join("template").join(SDK_LIST)];
    let list = lists.iter().find(|list| list.is_file()).context("README-for-new.txt is missing")?;
    println!("cargo::rerun-if-changed={}", list.display());
    let mut found = Vec::new();
    for line in fs::read_to_string(list)?.lines() {
        let Some((source, target)) = entry(line) else { continue };
        let target = in_project(target);
        if let Some((folder, pattern)) = source.rsplit_once("*.") {
            let inside = files(&sdk.join(folder))?.into_iter();
            let inside = inside.filter(|(name, _)| !name.contains('/'));
            let inside = inside.filter(|(name, _)| name.ends_with(&format!(".{pattern}")));
            found.extend(inside.map(|(name, path)| (format!("{target}/{name}"), path)));
        } else if sdk.join(source).is_dir() {
            let inside = files(&sdk.join(source))?.into_iter();
            found.extend(inside.map(|(name, path)| (format!("{target}/{name}"), path)));
        } else {
            ensure!(sdk.join(source).is_file(), "{}: no file {source}", list.display());
            found.push((target, sdk.join(source)));
        }
    }
    ensure!(!found.is_empty(), "{} names no file", list.display());
    found.sort();
    Ok(found)
}

/// Returns the source and the target of a line in the list of the SDK's files. A line without a target names a file
/// that keeps its path. Returns `None` for a comment, for other text, and for a file of the template.
fn entry(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "->").collect();
    let (source, target) = match words[..] {
        [source] => (source, source),
        [source, target] => (source, target),
        _ => return None,
    };
    let is_entry = !source.starts_with('#') && !source.starts_with("template/");
    is_entry.then_some((source, target))
}

/// Returns the path of a target in a project. The target is relative to the project's copy of the SDK.
fn in_project(target: &str) -> String {
    let target = target.strip_prefix(SDK_FOLDER).map_or(target, |inner| inner.trim_matches('/'));
    let mut parts: Vec<&str> = SDK_FOLDER.split('/').collect();
    for part in target.split('/').filter(|part| !part.is_empty()) {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// Returns the files of a folder, sorted by their paths relative to the folder.
fn files(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        println!("cargo::rerun-if-changed={}", inner.display());
        for entry in fs::read_dir(&inner).with_context(|| inner.display().to_string())? {
            let path = entry?.path();
            let is_ignored = path
                .file_name()
                .is_some_and(|name| IGNORED_FOLDERS.iter().any(|ignored| name == *ignored));
            if path.is_dir() && !is_ignored {
                folders.push(path);
            } else if path.is_file() {
                let name = path.strip_prefix(folder)?.to_str().context("a name is not UTF-8")?;
                found.push((name.to_owned(), path.clone()));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the path of a copy of the Rust SDK's manifest that does not depend on this repository.
fn vendored_manifest(root: &Path, out: &Path, manifest: &Path) -> Result<PathBuf> {
    let text = fs::read_to_string(manifest)?;
    let workspace = fs::read_to_string(root.join("Cargo.toml"))?;
    println!("cargo::rerun-if-changed={}", manifest.display());
    let target = out.join("sdk-rust.toml");
    fs::write(&target, self_contained(&text, &workspace)?)?;
    Ok(target)
}

/// Replaces the values that a manifest inherits from the workspace, and removes the lints of the workspace.
fn self_contained(manifest: &str, workspace: &str) -> Result<String> {
    let mut manifest: Table = manifest.parse()?;
    let workspace: Table = workspace.parse()?;
    let workspace = table(&workspace, "workspace")?;
    manifest.remove("lints");
    inherit(&mut manifest, "package", table(workspace, "package")?)?;
    let dependencies = table(workspace, "dependencies")?;
    inherit(&mut manifest, "dependencies", dependencies)?;
    if let Some(Value::Table(targets)) = manifest.get_mut("target") {
        for (_, target) in targets.iter_mut() {
            let target = target.as_table_mut().context("`target` has an entry that is no table")?;
            inherit(target, "dependencies", dependencies)?;
        }
    }
    let text = manifest.to_string();
    ensure!(!text.contains("workspace"), "the manifest still refers to the workspace: {text}");
    Ok(text)
}

fn table<'a>(table: &'a Table, name: &str) -> Result<&'a Table> {
    table.get(name).and_then(Value::as_table).with_context(|| format!("[{name}] is missing"))
}

/// Replaces the entries of the table `section` that have `workspace = true` by the entries of the workspace.
fn inherit(manifest: &mut Table, section: &str, workspace: &Table) -> Result<()> {
    let section = manifest.get_mut(section).and_then(Value::as_table_mut).context("a section")?;
    for (name, value) in section.iter_mut() {
        let inherits = value.get("workspace").and_then(Value::as_bool) == Some(true);
        if inherits {
            let inherited = workspace.get(name);
            *value = inherited.with_context(|| format!("the workspace has no {name}"))?.clone();
        }
    }
    Ok(())
}
