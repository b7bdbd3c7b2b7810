//! `cargo xtask prose`: counts phrases that make English hard to read, in comments, messages and Markdown pages.
//!
//! Each family of phrases has a limit for each kind of text. A limit may only fall. The command never changes a file.

mod markdown;
mod passage;
mod phrase;
mod source;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Map, Value, json};

use crate::setup::{announce, root};
use passage::Passage;
use phrase::{FAMILIES, FAMILY_COUNT, Family};

/// The upper limit of each family, in the order of `FAMILIES`, for each kind of text. Each limit is the number of
/// occurrences when the limit was set. Lower a limit when the number of occurrences has fallen; never raise a limit.
#[rustfmt::skip]
const LIMITS: [(Kind, [usize; FAMILY_COUNT]); KIND_COUNT] = [
    //              `start  what  told  say  go-on  pronoun  so-many  still  had  may  look-at  is-there`
    (Kind::Comments, [   0,    0,    0,   0,     0,       0,       0,     0,   0,   0,       0,        0]),
    (Kind::Messages, [   0,    0,    0,   0,     0,       0,       0,     0,   0,   0,       0,        0]),
    (Kind::Guide,    [   0,    0,    0,   0,     0,       0,       0,     0,   0,   0,       0,        0]),
    (Kind::Pages,    [   0,    0,    0,   0,     0,       0,       0,     0,   0,   0,       0,        0]),
    (Kind::Tests,    [   0,    0,    0,   0,     0,       0,       0,     0,   0,   0,       0,        0]),
];

const KIND_COUNT: usize = 5;

/// The beginning of the paths of this command's own files. Their tests contain the forbidden phrases.
const OWN_FOLDER: &str = "xtask/src/prose";

/// The minimum number of words of a message. A string literal with fewer words is not checked.
const MESSAGE_WORDS: usize = 3;

#[derive(Debug, Args)]
pub(crate) struct ProseArgs {
    /// List the occurrences of a family
    #[arg(long, value_name = "FAMILY", value_parser = family_names())]
    list: Option<String>,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
}

fn family_names() -> PossibleValuesParser {
    PossibleValuesParser::new(FAMILIES.iter().map(|family| family.name))
}

impl ProseArgs {
    /// Returns the arguments that print the table, as `cargo xtask ci` does.
    pub(crate) fn table() -> Self {
        Self { list: None, json: false }
    }
}

/// A kind of text, with its own limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Comments in Rust, Lua, WIT, WAT, TOML and YAML, and in the script `.ci/run`.
    Comments,
    /// String literals in Lua, and in Rust outside of tests: logs, errors and reports. Also the annotations of alerting
    /// rules.
    Messages,
    /// The guide for users.
    Guide,
    /// All other Markdown pages.
    Pages,
    /// String literals in tests in Rust.
    Tests,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Comments => "comments",
            Self::Messages => "messages",
            Self::Guide => "guide",
            Self::Pages => "pages",
            Self::Tests => "tests",
        }
    }

    fn of_page(path: &str) -> Self {
        if path.starts_with("docs/guide/") { Self::Guide } else { Self::Pages }
    }
}

/// An occurrence of a phrase.
struct Finding {
    kind: Kind,
    family: &'static Family,
    path: String,
    line: usize,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, path, line, text, .. } = self;
        write!(out, "{path}:{line}: {}: {text}", family.name)
    }
}

/// The occurrences in all texts, and the number of lines of each kind of text.
#[derive(Default)]
struct Survey {
    findings: Vec<Finding>,
    lines: [usize; KIND_COUNT],
}

pub(crate) fn prose(args: &ProseArgs) -> Result<()> {
    let survey = Survey::read(root())?;
    if let Some(name) = &args.list {
        survey.list(name);
        return Ok(());
    }
    if args.json {
        println!("{}", survey.json());
    } else {
        announce("prose of comments, messages and pages");
        print!("{survey}");
    }
    let exceeded = survey.exceeded();
    let loose = survey.loose_limits();
    if !args.json && !loose.is_empty() {
        announce(&format!("limits in xtask/src/prose.rs that can fall: {}", loose.join(", ")));
    }
    for line in lines(exceeded.iter().flat_map(|(kind, family)| survey.of(*kind, family))) {
        eprintln!("{line}");
    }
    let names: Vec<String> = exceeded
        .iter()
        .map(|(kind, family)| format!("{} in {}", family.name, kind.name()))
        .collect();
    ensure!(
        names.is_empty(),
        "more phrases than the limits in xtask/src/prose.rs allow: {}; rewrite the new phrases in the list above",
        names.join(", ")
    );
    Ok(())
}

impl Survey {
    /// Reads the files of the repository, except files that git ignores and files that do not belong to this project.
    fn read(root: &Path) -> Result<Self> {
        let mut git = Command::new("git");
        git.current_dir(root).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let listed = git.output().context("cannot start git, which lists the files")?;
        ensure!(listed.status.success(), "git ls-files failed: {:?}", listed.stderr.escape_ascii());
        let names = String::from_utf8(listed.stdout).context("a file's name is not UTF-8")?;
        let mut survey = Self::default();
        for path in names.split_terminator('\0').filter(|path| is_ours(path)) {
            // Git still lists a file whose removal is not committed.
            if root.join(path).is_file() {
                let bytes = std::fs::read(root.join(path)).with_context(|| path.to_owned())?;
                survey.add_file(path, &String::from_utf8_lossy(&bytes));
            }
        }
        Ok(survey)
    }

    fn add_file(&mut self, path: &str, text: &str) {
        let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
        match extension {
            Some("md") => self.add(path, Kind::of_page(path), markdown::passages(text)),
            Some("rs") => {
                let source = source::rust(text, is_test(path));
                self.add(path, Kind::Comments, source.comments);
                self.add_messages(path, Kind::Messages, source.literals);
                if !path.starts_with(OWN_FOLDER) {
                    self.add_messages(path, Kind::Tests, source.test_literals);
                }
            }
            Some("wit") => self.add(path, Kind::Comments, source::rust(text, false).comments),
            Some("wat") => self.add(path, Kind::Comments, source::line_comments(text, ";;")),
            Some("lua") => {
                self.add(path, Kind::Comments, source::line_comments(text, "--"));
                self.add_messages(path, Kind::Messages, source::line_literals(text, "--"));
            }
            _ if path == ".ci/run" || matches!(extension, Some("toml" | "yaml")) => {
                self.add(path, Kind::Comments, source::line_comments(text, "#"));
                if extension == Some("yaml") {
                    self.add_messages(path, Kind::Messages, source::annotations(text));
                }
            }
            _ => {}
        }
    }

    /// Adds the literals that have enough words for a message.
    fn add_messages(&mut self, path: &str, kind: Kind, literals: Vec<Passage>) {
        let messages = literals.into_iter().filter(|literal| literal.word_count() >= MESSAGE_WORDS);
        self.add(path, kind, messages.collect());
    }

    fn add(&mut self, path: &str, kind: Kind, passages: Vec<Passage>) {
        for passage in passages {
            self.lines[kind as usize] += passage.line_count();
            let found = phrase::find(&passage).into_iter().map(|(family, line, text)| Finding {
                kind,
                family,
                path: path.to_owned(),
                line,
                text,
            });
            self.findings.extend(found);
        }
    }

    fn of(&self, kind: Kind, family: &Family) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(move |finding| finding.kind == kind && finding.family.name == family.name)
    }

    fn count(&self, kind: Kind, family: &Family) -> usize {
        self.of(kind, family).count()
    }

    /// Returns how often a family occurs in 1,000 lines of a kind of text.
    fn density(&self, kind: Kind, family: &Family) -> f64 {
        1000.0 * self.count(kind, family) as f64 / self.lines[kind as usize].max(1) as f64
    }

    fn exceeded(&self) -> Vec<(Kind, &'static Family)> {
        cells()
            .filter(|(kind, family, limit)| self.count(*kind, family) > *limit)
            .map(|(kind, family, _)| (kind, family))
            .collect()
    }

    /// Returns a text for each limit that is above the present number of occurrences.
    fn loose_limits(&self) -> Vec<String> {
        let loose = cells().filter_map(|(kind, family, limit)| {
            let count = self.count(kind, family);
            let text = || format!("{} in {} from {limit} to {count}", family.name, kind.name());
            (count < limit).then(text)
        });
        loose.collect()
    }

    fn list(&self, name: &str) {
        for line in lines(self.findings.iter().filter(|finding| finding.family.name == name)) {
            println!("{line}");
        }
    }

    fn json(&self) -> Value {
        let lines: Map<String, Value> = LIMITS
            .iter()
            .map(|(kind, _)| (kind.name().to_owned(), json!(self.lines[*kind as usize])))
            .collect();
        let cells: Vec<Value> = cells()
            .map(|(kind, family, limit)| {
                json!({
                    "family": family.name,
                    "text": kind.name(),
                    "count": self.count(kind, family),
                    "per_1000_lines": self.density(kind, family),
                    "limit": limit,
                })
            })
            .collect();
        json!({ "lines": lines, "families": cells })
    }
}

impl fmt::Display for Survey {
    /// Writes the table: for each family and kind of text, the count, the count per 1,000 lines, and the limit.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:16}", "count/1000/limit")?;
        for (kind, _) in &LIMITS {
            write!(out, "{:>22}", kind.name())?;
        }
        write!(out, "\n{:16}", "lines")?;
        for (kind, _) in &LIMITS {
            write!(out, "{:>22}", self.lines[*kind as usize])?;
        }
        for (column, family) in FAMILIES.iter().enumerate() {
            write!(out, "\n{:16}", family.name)?;
            for (kind, limits) in &LIMITS {
                let count = self.count(*kind, family);
                let density = self.density(*kind, family);
                write!(out, "{count:>9} {density:>6.1} {:>5}", limits[column])?;
            }
        }
        writeln!(out)
    }
}

/// Returns a line for each finding. The line of a family's first finding ends with the rule of the family.
fn lines<'a>(findings: impl Iterator<Item = &'a Finding>) -> Vec<String> {
    let mut advised: Vec<&str> = Vec::new();
    let mut lines = Vec::new();
    for finding in findings {
        let family = finding.family;
        if advised.contains(&family.name) {
            lines.push(finding.to_string());
        } else {
            advised.push(family.name);
            lines.push(format!("{finding} [rule: {}]", family.advice));
        }
    }
    lines
}

/// Returns each kind and family with its limit.
fn cells() -> impl Iterator<Item = (Kind, &'static Family, usize)> {
    LIMITS.iter().flat_map(|(kind, limits)| {
        FAMILIES.iter().zip(limits).map(|(family, limit)| (*kind, family, *limit))
    })
}

/// Returns whether a file belongs to this project. The changed libraries in `vendor` have their own styles.
fn is_ours(path: &str) -> bool {
    !path.starts_with("vendor/") || path == "vendor/README.md"
}

/// Returns whether a Rust file contains only tests. `xtask/src/tests.rs` is no test file: it contains the command
/// `cargo xtask test`.
fn is_test(path: &str) -> bool {
    let is_command = path.starts_with("xtask/");
    path.contains("/tests/") || (path.ends_with("/tests.rs") && !is_command)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let mut survey = Survey::default();
        survey.add_file(path, text);
        survey.findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn phrases_are_reported_with_file_line_and_text() {
        let page = "# What it does\n\nThe host\ngoes on. Nobody waits.\n";
        let expected = [
            "README.md:4: go-on: The host goes on. Nobody waits.",
            "README.md:4: pronoun: The host goes on. Nobody waits.",
        ];
        assert_eq!(findings("README.md", page), expected);
    }

    #[test]
    fn comments_and_messages_are_separate_kinds() {
        let source = "/// Whether it goes on.\nfn a() { bail!(\"nobody has it\") }\n";
        let mut survey = Survey::default();
        survey.add_file("runtime/a.rs", source);
        let counts = |kind| FAMILIES.iter().map(|family| survey.count(kind, family)).sum::<usize>();
        assert_eq!((counts(Kind::Comments), counts(Kind::Messages)), (2, 1));
        assert_eq!(counts(Kind::Tests), 0);
    }

    #[test]
    fn literals_of_tests_are_prose_but_need_not_be_sentences() {
        for path in ["tests/tests/a.rs", "runtime/a/tests.rs"] {
            assert_eq!(
                findings(path, "fn a() { bail!(\"nobody has it\") }"),
                [format!("{path}:1: pronoun: nobody has it")]
            );
        }
        let inner = "#[cfg(test)]\nmod tests { fn a() { bail!(\"of the host, nobody has it\") } }";
        let expected = ["runtime/a.rs:2: pronoun: of the host, nobody has it"];
        assert_eq!(findings("runtime/a.rs", inner), expected);
        assert_eq!(findings("xtask/src/prose/phrase.rs", inner), Vec::<String>::new());
    }

    #[test]
    fn short_literals_and_other_files_are_not_prose() {
        assert_eq!(findings("runtime/a.rs", "const A: &str = \"nobody\";"), Vec::<String>::new());
        assert_eq!(findings("a.sql", "-- nobody has it"), Vec::<String>::new());
    }

    #[test]
    fn comments_literals_of_lua_and_annotations_are_prose() {
        for (path, text) in [
            ("docs/a.yaml", "a: 1  # nobody has it"),
            ("docs/a.yaml", "summary: nobody has it"),
            ("tests/a.wat", ";; nobody has it"),
            (".ci/run", "# nobody has it"),
            ("a.toml", "# nobody has it"),
            ("a.lua", "error('nobody has it')"),
            ("a.lua", "-- nobody has it"),
        ] {
            assert_eq!(findings(path, text), [format!("{path}:1: pronoun: nobody has it")]);
        }
    }

    #[test]
    fn first_finding_of_a_family_has_the_rule() {
        let mut survey = Survey::default();
        survey.add_file("a.toml", "# It goes on.\n\n# Nobody waits.\n\n# They go on.\n");
        let expected = [
            "a.toml:1: go-on: It goes on. [rule: write `continue` or `resume`]",
            "a.toml:3: pronoun: Nobody waits. [rule: name the actor or the thing]",
            "a.toml:5: go-on: They go on.",
        ];
        assert_eq!(lines(survey.findings.iter()), expected);
    }

    #[test]
    fn exceeded_limit_is_found() {
        let mut survey = Survey::default();
        survey.add_file("docs/internals/a.md", "The owner is told.\n");
        let exceeded = survey.exceeded();
        assert_eq!(exceeded.len(), 1);
        assert_eq!((exceeded[0].0, exceeded[0].1.name), (Kind::Pages, "told"));
    }

    #[test]
    fn limit_above_the_number_is_reported() {
        let loose = Survey::default().loose_limits();
        let wanted = cells().filter(|(_, _, limit)| *limit > 0).count();
        assert_eq!(loose.len(), wanted);
    }

    /// Returns the literals outside of tests that contain a command of `ordain` in backticks.
    fn literals_with_commands(text: &str) -> Vec<String> {
        let whole = |literal: &Passage| {
            let words = literal.words();
            let last = words.len().checked_sub(1)?;
            Some(literal.excerpt(&words, 0, last))
        };
        let literals = source::rust(text, false).literals;
        literals.iter().filter_map(whole).filter(|literal| literal.contains("`ordain ")).collect()
    }

    fn add_rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                add_rust_files(&path, files)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
        Ok(())
    }

    /// A user must be able to run each printed command unchanged, with the configuration of the process and with quoted
    /// words. Only `ordain_util::command::PrintedCommand` ensures this, so no other literal may contain a command.
    #[test]
    fn printed_commands_are_built_in_one_place() -> Result<()> {
        let source = "fn a() { warn!(\"see `ordain keys \\\n list`\") }\n// `ordain run`\n\
                      #[test]\nfn b() { assert_eq!(a(), \"see `ordain run`\") }\n";
        assert_eq!(literals_with_commands(source), ["see `ordain keys list`"]);
        let mut files = Vec::new();
        add_rust_files(&root().join("runtime"), &mut files)?;
        ensure!(files.len() > 100, "only {} files", files.len());
        for path in files {
            let text = std::fs::read_to_string(&path)?;
            let found = literals_with_commands(&text);
            let may_contain = is_test(&path.strip_prefix(root())?.to_string_lossy());
            ensure!(may_contain || found.is_empty(), "{}: {found:#?}", path.display());
        }
        Ok(())
    }

    #[test]
    fn limits_are_in_the_order_of_the_kinds() {
        for (at, (kind, _)) in LIMITS.iter().enumerate() {
            assert_eq!(*kind as usize, at);
        }
    }
}
