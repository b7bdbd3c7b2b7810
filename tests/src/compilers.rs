//! The environment of commands that use the compilers of all languages. `cargo xtask plugins` installs these compilers.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

/// Sets the environment of a command that uses the program `ordain`, Go, Zig and the packages of all languages. `tools`
/// is the folder that contains the compilers, and `host` is the path of `ordain`. The command reaches no registry: npm
/// and `pip` install the packages that `cargo xtask plugins` has downloaded.
pub fn use_compilers(command: &mut Command, tools: &Path, host: &Path) -> Result<()> {
    let host_folder = host.parent().unwrap_or(Path::new(".")).display();
    let path = std::env::var("PATH")?;
    let zig = tools.join("sdk/c/python/bin/python");
    command.env("PATH", format!("{host_folder}:{}:{path}", tools.join("bin").display()));
    command.env("ORDAIN", host);
    command.env("npm_config_cache", tools.join("npm")).env("npm_config_offline", "true");
    command.env("PIP_FIND_LINKS", tools.join("wheels")).env("PIP_NO_INDEX", "1");
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("GOCACHE", tools.join("sdk/go/cache"));
    command.env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    command.env("ZIG", format!("{} -m ziglang", zig.display()));
    for cache in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
        command.env(cache, tools.join("sdk/c/cache"));
    }
    Ok(())
}

/// Returns the commands in the first block of the README of a new project, without the commands of `ordain`.
pub fn native_commands(readme: &str) -> Option<String> {
    let (_, block) = readme.split_once("```sh\n")?;
    let (block, _) = block.split_once("```")?;
    let native = block.lines().filter(|line| !line.starts_with("ordain "));
    Some(native.collect::<Vec<_>>().join("\n"))
}
