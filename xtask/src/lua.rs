//! `cargo xtask lua`: checks the scripts of the Redis store.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use ordain_servers::{Redis, Reply};

use crate::setup::{announce, lua_programs, root};

/// The name, without the extension, of the file whose text the host prepends to every script.
const COMMON: &str = "common";
/// Number of local variables that Lua allows in one function.
const LUA_LOCALS_LIMIT: usize = 200;
/// The limit that this command sets for the local variables in a script's main chunk (the code outside of functions).
/// This limit is below Lua's own limit, so that a new feature fits without a rewrite of the script.
const LOCALS_LIMIT: usize = 150;

/// A Lua file: its path, relative to the root of the workspace, and its text.
struct Script {
    path: String,
    text: String,
}

impl Script {
    fn name(&self) -> &str {
        Path::new(&self.path).file_stem().and_then(|name| name.to_str()).unwrap_or(&self.path)
    }
}

/// Runs luacheck on the scripts. Then counts the local variables of each script together with the common file, because
/// Redis compiles the two files as one script.
pub(crate) fn lua() -> Result<()> {
    announce("scripts of the Redis store");
    lua_programs()?;
    let mut scripts = scripts()?;
    let common = scripts.iter().position(|script| script.name() == COMMON);
    let common = scripts.remove(common.with_context(|| format!("{COMMON}.lua is missing"))?);
    lint(&common, &scripts)?;
    count_locals(&common, &scripts)
}

/// Finds and reads the Lua scripts of the workspace.
fn scripts() -> Result<Vec<Script>> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = git.arg("*.lua").output().context("cannot start git")?;
    ensure!(listed.status.success(), "git ls-files failed: {:?}", listed.stderr.escape_ascii());
    let paths = String::from_utf8(listed.stdout)?;
    let read = |path: &str| {
        let text = std::fs::read_to_string(root().join(path));
        Ok(Script {
            path: path.to_owned(),
            text: text.with_context(|| format!("cannot read {path}"))?,
        })
    };
    // Git still lists a file whose removal or move is not committed.
    paths.lines().filter(|path| root().join(path).exists()).map(read).collect()
}

/// Runs luacheck; a warning is an error. Then checks that each top-level local of the common file is used.
fn lint(common: &Script, scripts: &[Script]) -> Result<()> {
    let names = top_level_names(&common.text);
    // The common file declares locals for other scripts, and itself uses few of these locals. The command therefore
    // ignores the warning 211 (unused variable) for this file.
    luacheck(Command::new("luacheck").args(["--quiet", "--ignore", "211", "--", &common.path]))?;
    let paths = scripts.iter().map(|script| &script.path);
    let mut others = Command::new("luacheck");
    luacheck(others.args(["--quiet", "--read-globals"]).args(&names).arg("--").args(paths))?;
    for name in names {
        let uses: usize = std::iter::once(common)
            .chain(scripts)
            .map(|script| words(&script.text).filter(|word| *word == name).count())
            .sum();
        ensure!(uses > 1, "{}: no script uses {name}: remove it", common.path);
    }
    Ok(())
}

fn luacheck(command: &mut Command) -> Result<()> {
    let status = command.current_dir(root()).status().context("cannot start luacheck")?;
    ensure!(status.success(), "luacheck reported warnings: see above");
    Ok(())
}

/// Returns the local names that a script declares outside of functions and blocks.
fn top_level_names(text: &str) -> Vec<&str> {
    let declarations = text.lines().filter_map(|line| line.strip_prefix("local "));
    let lists = declarations.filter_map(|declared| {
        declared.strip_prefix("function ").unwrap_or(declared).split(['(', '=']).next()
    });
    lists.flat_map(|list| list.split(',')).map(str::trim).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
}

/// Counts the locals of each script's main chunk. A count above `LOCALS_LIMIT` is an error.
fn count_locals(common: &Script, scripts: &[Script]) -> Result<()> {
    let server = Redis::start(&[])?;
    let mut counts = Vec::new();
    for script in scripts {
        let whole = format!("{}\n{}", common.text, script.text);
        let count = locals(&server, &whole).with_context(|| script.path.clone())?;
        ensure!(
            count <= LOCALS_LIMIT,
            "{}: the main chunk has {count} locals; at most {LOCALS_LIMIT} are allowed (Lua's own limit is \
             {LUA_LOCALS_LIMIT}); move the locals of one phase to a block (`do … end`) or a function",
            script.path
        );
        counts.push((count, script.name()));
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let most: Vec<String> =
        counts.iter().take(3).map(|(count, name)| format!("{name} {count}")).collect();
    announce(&format!(
        "{} scripts without warnings; scripts with the most locals (limit {LOCALS_LIMIT}): {}",
        scripts.len() + 1,
        most.join(", ")
    ));
    Ok(())
}

/// Returns the largest number of locals that the main chunk has at one time. The function adds locals to the script,
/// and searches for the largest number of added locals with which Redis still compiles the script.
fn locals(server: &Redis, text: &str) -> Result<usize> {
    server.command(&["SCRIPT", "LOAD", text])?;
    let mut fits = 0;
    let mut too_many = LUA_LOCALS_LIMIT + 1;
    while too_many - fits > 1 {
        let spare = usize::midpoint(fits, too_many);
        let names: Vec<String> = (1..=spare).map(|number| format!("spare{number}")).collect();
        let padded = format!("local {}\n{text}", names.join(", "));
        match server.attempt(&["SCRIPT", "LOAD", &padded])? {
            Reply::Text(_) => fits = spare,
            Reply::Error(error) if error.contains("local variables") => too_many = spare,
            reply => bail!("unexpected reply to SCRIPT LOAD: {reply:?}"),
        }
    }
    Ok(LUA_LOCALS_LIMIT - fits)
}

#[test]
fn top_level_names_are_found() {
    let text = "local byte, sub = string.byte, string.sub\nlocal LIMIT = 2 ^ 32\n\
                local function has(flags, flag)\n  local inner = 1\nend\nlocal reply\n";
    assert_eq!(top_level_names(text), ["byte", "sub", "LIMIT", "has", "reply"]);
}
