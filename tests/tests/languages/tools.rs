//! The compilers that `cargo xtask plugins` has installed into the folder `languages` of cargo's output, and shell
//! commands that use these compilers. The commands reach no registry: npm and `pip` install the packages that
//! `cargo xtask plugins` has downloaded.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::binary;
use ordain_tests::plugins::{root, target_dir};

/// Returns the folder with the compilers, and with the packages of all languages.
pub(crate) fn tools() -> Result<PathBuf> {
    let tools = target_dir()?.join("languages");
    ensure!(
        tools.join("wheels").exists() && tools.join("bin").exists(),
        "{} has no compilers: install the compilers of all languages with `cargo xtask plugins`",
        tools.display()
    );
    Ok(tools)
}

/// Runs shell commands in a folder, with `ordain`, Go, Zig and the packages of all languages. The commands must
/// succeed. Returns their standard output.
pub(crate) fn shell(folder: &Path, commands: &str) -> Result<String> {
    let tools = tools()?;
    let host = binary()?;
    let host_folder = host.parent().context("the host's folder")?.display();
    let path = std::env::var("PATH")?;
    let zig = tools.join("sdk/c/python/bin/python");
    let mut shell = Command::new("sh");
    shell.current_dir(folder).args(["-e", "-c", commands]).stdin(Stdio::null());
    shell.env("PATH", format!("{host_folder}:{}:{path}", tools.join("bin").display()));
    shell.env("ORDAIN", &host);
    shell.env("npm_config_cache", tools.join("npm")).env("npm_config_offline", "true");
    shell.env("PIP_FIND_LINKS", tools.join("wheels")).env("PIP_NO_INDEX", "1");
    shell.env("PYTHONDONTWRITEBYTECODE", "1");
    shell.env("GOCACHE", tools.join("sdk/go/cache"));
    shell.env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    shell.env("ZIG", format!("{} -m ziglang", zig.display()));
    for cache in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
        shell.env(cache, tools.join("sdk/c/cache"));
    }
    let output = shell.output()?;
    let stdout = String::from_utf8(output.stdout)?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}:\n{commands}\n{stdout}{log}", output.status);
    Ok(stdout)
}

/// Runs shell commands as [`shell`] does. Returns their standard output and their standard error.
pub(crate) fn shell_with_errors(folder: &Path, commands: &str) -> Result<String> {
    shell(folder, &format!("exec 2>&1\n{commands}"))
}

/// Copies folders of this repository into a new folder, at the same paths. Leaves out the files that Git ignores.
pub(crate) fn copy_sources(folders: &[&str], to: &Path) -> Result<()> {
    let mut list = Command::new("git");
    list.current_dir(root()).args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let list = list.args(folders).output().context("cannot start git")?;
    ensure!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let names = String::from_utf8(list.stdout)?;
    // Git also lists files that were removed since the last commit.
    for name in names.split('\0').filter(|name| root().join(name).is_file()) {
        let copy = to.join(name);
        std::fs::create_dir_all(copy.parent().context("a file in a folder")?)?;
        std::fs::copy(root().join(name), copy).with_context(|| format!("cannot copy {name}"))?;
    }
    Ok(())
}
