//! The compilers that `cargo xtask plugins` has installed into the folder `languages` of cargo's output, and shell
//! commands that use these compilers. The commands reach no registry: npm and `pip` install the packages that
//! `cargo xtask plugins` has downloaded.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use ordain_tests::compilers::use_compilers;
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
    let mut shell = Command::new("sh");
    shell.current_dir(folder).args(["-e", "-c", commands]).stdin(Stdio::null());
    use_compilers(&mut shell, &tools()?, &binary()?)?;
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
