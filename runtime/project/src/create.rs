//! Creates a project from a template.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::template::{TEMPLATES, Template, TemplateFile};

/// Length limit of a project's name. The name is also the name of a handler, which has the same limit.
const NAME_LIMIT_BYTES: usize = 64;

/// Names that a language or its tools reserve. A handler's module or package could not have such a name.
#[rustfmt::skip]
const RESERVED_NAMES: &[&str] = &[
    "abstract", "alloc", "and", "as", "assert", "async", "auto", "await", "become", "bool", "box", "break", "case",
    "catch", "chan", "char", "class", "const", "continue", "core", "crate", "debugger", "def", "default", "defer",
    "del", "delete", "do", "double", "dyn", "elif", "else", "enum", "except", "export", "extends", "extern",
    "fallthrough", "false", "final", "finally", "float", "fn", "for", "from", "func", "function", "gen", "global",
    "go", "goto", "if", "impl", "implements", "import", "in", "inline", "instanceof", "int", "interface", "is",
    "lambda", "let", "long", "loop", "macro", "main", "map", "match", "mod", "move", "mut", "new", "nonlocal",
    "not", "null", "or", "ordain", "override", "package", "pass", "plugin", "priv", "private", "protected", "pub",
    "public", "raise", "range", "ref", "register", "restrict", "return", "select", "self", "short", "signed",
    "sizeof", "static", "std", "struct", "super", "switch", "test", "tests", "this", "throw", "trait", "true",
    "try", "type", "typedef", "typeof", "union", "unsafe", "unsigned", "unsized", "use", "var", "vendor",
    "virtual", "void", "volatile", "where", "while", "with", "yield",
];

/// The order of the events of a new project's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectOrdering {
    /// The events have numbers.
    Sequenced,
    /// Ordain numbers the events in the order of delivery.
    Fifo,
}

/// A request for a new project.
#[derive(Debug)]
pub struct NewProject<'a> {
    /// The language of the handler: an element of [`languages`](crate::languages).
    pub language: &'a str,
    /// The folder of the project. The last part of the path is the name of the project.
    pub folder: &'a Path,
    /// The order of the events of the stream.
    pub ordering: ProjectOrdering,
}

/// A project that has been created.
#[derive(Debug)]
pub struct CreatedProject {
    /// The name of the project, of its handler and of its stream.
    pub name: String,
    /// The paths of the files, relative to the folder of the project, without the files of the SDK.
    pub files: Vec<String>,
    /// The next commands, each with its purpose, from the first block of code in the project's README.
    pub commands: Vec<String>,
}

/// The reason why a project was not created.
#[derive(Debug, thiserror::Error)]
pub enum NewProjectError {
    /// The name cannot be the name of a project.
    #[error(
        "{0:?} is no name of a project: expected 1 to {NAME_LIMIT_BYTES} lower-case letters (a-z), digits and hyphens; \
         the name begins with a letter and ends with a letter or digit, such as `account-history`"
    )]
    Name(String),
    /// A language reserves the name.
    #[error(
        "the name {0:?} is reserved by a programming language or its tools: choose another name, such as `{0}-events`"
    )]
    ReservedName(String),
    /// The program has no template for the language.
    #[error("no template for the language {0:?}")]
    Language(String),
    /// The folder exists and has content.
    #[error("the folder {} is not empty: name a new or an empty folder", .0.display())]
    NotEmpty(PathBuf),
    /// The path leads to a file.
    #[error("{} is not a folder: name a new or an empty folder", .0.display())]
    NotFolder(PathBuf),
    /// A file or folder cannot be written or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl NewProject<'_> {
    /// Creates the project. Creates no file if the name is invalid or if the folder is not empty.
    pub fn create(&self) -> Result<CreatedProject, NewProjectError> {
        let name = self.name()?;
        let template = TEMPLATES.iter().find(|template| template.language == self.language);
        let template =
            template.ok_or_else(|| NewProjectError::Language(self.language.to_owned()))?;
        self.check_folder()?;
        let files = self.files(template, &name);
        for (path, content) in &files {
            write(&self.folder.join(path), content)?;
        }
        for file in template.sdk {
            write(&self.folder.join(file.path), file.content)?;
        }
        let commands = commands(files.get("README.md").map_or(&[][..], |readme| readme));
        Ok(CreatedProject { name, files: files.into_keys().collect(), commands })
    }

    /// Returns the name of the project, if it is valid.
    fn name(&self) -> Result<String, NewProjectError> {
        let name = self.folder.file_name().unwrap_or(self.folder.as_os_str()).to_string_lossy();
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_valid = name.len() <= NAME_LIMIT_BYTES
            && name.bytes().all(is_allowed)
            && name.starts_with(|letter: char| letter.is_ascii_lowercase())
            && !name.ends_with('-');
        if !is_valid {
            return Err(NewProjectError::Name(name.into_owned()));
        }
        if RESERVED_NAMES.contains(&&*name) {
            return Err(NewProjectError::ReservedName(name.into_owned()));
        }
        Ok(name.into_owned())
    }

    fn check_folder(&self) -> Result<(), NewProjectError> {
        match fs::read_dir(self.folder) {
            Ok(mut entries) => match entries.next() {
                Some(_) => Err(NewProjectError::NotEmpty(self.folder.to_owned())),
                None => Ok(()),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                Err(NewProjectError::NotFolder(self.folder.to_owned()))
            }
            Err(source) => Err(NewProjectError::Io { path: self.folder.to_owned(), source }),
        }
    }

    /// Returns the files of the project with their contents, without the files of the SDK.
    fn files(&self, template: &Template, name: &str) -> BTreeMap<String, Vec<u8>> {
        let ident = name.replace('-', "_");
        let filled = |text: &str| text.replace("{{name}}", name).replace("{{ident}}", &ident);
        let file = |TemplateFile { path, content }: &TemplateFile| {
            let path = filled(path);
            let path = match path.rsplit_once('/') {
                None if path == "gitignore" => ".gitignore".to_owned(),
                Some((folder, "gitignore")) => format!("{folder}/.gitignore"),
                _ => path,
            };
            let content = match std::str::from_utf8(content) {
                Ok(text) => self.ordered(&path, filled(text)).into_bytes(),
                Err(_) => content.to_vec(),
            };
            (path, content)
        };
        template.files.iter().map(file).collect()
    }

    /// Changes a file of a template, whose stream is `sequenced`, for the ordering of the project.
    fn ordered(&self, path: &str, text: String) -> String {
        match self.ordering {
            ProjectOrdering::Fifo if path == "ordain.toml" => fifo_config(&text),
            ProjectOrdering::Fifo if has_extension(path, "ndjson") => fifo_events(&text),
            ProjectOrdering::Sequenced | ProjectOrdering::Fifo => text,
        }
    }
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// Adds `ordering = "fifo"` to each stream, after its handler.
fn fifo_config(text: &str) -> String {
    let mut config = String::new();
    for line in text.lines() {
        config += line;
        config.push('\n');
        if line.starts_with("handler = ") {
            config += "ordering = \"fifo\"\n";
        }
    }
    config
}

/// Removes the sequences of events, and puts the events of each key into the order of their sequences. If a line after
/// an event is no event, such as an expectation of a scripted test, the line stays after this event.
fn fifo_events(text: &str) -> String {
    let mut events: Vec<(String, u64, String)> = Vec::new();
    for line in text.lines() {
        let event = serde_json::from_str::<Value>(line).unwrap_or_default();
        let sequence = event["sequence"].as_str().and_then(|sequence| sequence.parse().ok());
        match (sequence, events.last_mut()) {
            (Some(sequence), _) => {
                let key = event["subject"].as_str().unwrap_or_default().to_owned();
                let member = format!("\"sequence\":\"{sequence}\",");
                events.push((key, sequence, format!("{}\n", line.replacen(&member, "", 1))));
            }
            (None, Some((.., event))) => *event += &format!("{line}\n"),
            (None, None) => events.push((String::new(), 0, format!("{line}\n"))),
        }
    }
    let mut ordered: BTreeMap<&str, Vec<(u64, &str)>> = BTreeMap::new();
    for (key, sequence, lines) in &events {
        ordered.entry(key).or_default().push((*sequence, lines));
    }
    for lines in ordered.values_mut() {
        lines.sort_unstable_by(|one, other| other.cmp(one));
    }
    let next = |(key, ..): &(String, u64, String)| {
        ordered.get_mut(&**key).and_then(Vec::pop).map_or("", |(_, lines)| lines)
    };
    events.iter().map(next).collect()
}

/// Returns the lines of the first block of shell commands in a README.
fn commands(readme: &[u8]) -> Vec<String> {
    let readme = String::from_utf8_lossy(readme);
    let block = readme.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let lines = block.unwrap_or_default().lines().map(str::trim_end);
    lines.filter(|line| !line.is_empty()).map(ToOwned::to_owned).collect()
}

fn write(path: &Path, content: &[u8]) -> Result<(), NewProjectError> {
    let failed = |source| NewProjectError::Io { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, content).map_err(failed)
}

#[cfg(test)]
mod tests;
