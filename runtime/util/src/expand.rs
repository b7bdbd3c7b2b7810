//! Replaces `${NAME}`, `${NAME:-default}` and `${file:/path}` in text values. `$${` is a literal `${`.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The prefix in the braces of a variable whose value is the content of a file.
const FILE_PREFIX: &str = "file:";
/// Size limit of the file that a variable names, in bytes.
const FILE_SIZE_LIMIT: u64 = 64 << 10;

/// The reason why the variables of a text cannot be replaced. The error does not contain the values of the variables.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// A variable is written wrongly, an environment variable is not set, or the file of a variable is unsuitable: for
    /// example, the file is too large.
    #[error("{0}")]
    Invalid(String),
    /// The file of a variable cannot be read now, for example because it is empty or does not exist yet.
    #[error("{0}")]
    Unreadable(String),
}

/// A function that looks up an environment variable. The function is a parameter, so that tests do not depend on the
/// environment.
pub type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Replaces the variables in a text. The returned flag is `true` if the text contained variables.
pub fn expand<'a>(text: &'a str, env: EnvLookup<'_>) -> Result<(Cow<'a, str>, bool), ExpandError> {
    if !text.contains("${") {
        return Ok((Cow::Borrowed(text), false));
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut has_variables = false;
    while let Some(start) = rest.find("${") {
        if rest[..start].ends_with('$') {
            out.push_str(&rest[..start]);
            out.push('{');
            rest = &rest[start + 2..];
            continue;
        }
        out.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let end = inside.find('}').ok_or_else(|| {
            ExpandError::Invalid(
                "`${` has no closing `}`; write `$${` for a literal `${`".to_owned(),
            )
        })?;
        out.push_str(&variable(&inside[..end], env)?);
        has_variables = true;
        rest = &inside[end + 1..];
    }
    out.push_str(rest);
    Ok((Cow::Owned(out), has_variables))
}

/// Returns whether a text has a variable whose value is the content of a file. The content may change while a process
/// runs.
pub fn has_file_variable(text: &str) -> bool {
    text.contains("${file:")
}

/// Returns whether a text has a variable whose value comes from the environment of the process.
pub fn has_environment_variable(text: &str) -> bool {
    text.match_indices("${").any(|(start, _)| {
        let is_literal = text[..start].ends_with('$');
        !is_literal && !text[start + 2..].starts_with(FILE_PREFIX)
    })
}

/// Replaces the variables of a text by the present values of the environment variables and the present contents of the
/// files.
pub fn expand_again(text: &str) -> Result<String, ExpandError> {
    expand(text, &|name| std::env::var(name).ok()).map(|(expanded, _)| expanded.into_owned())
}

/// Returns the content of a file without the line break at its end. Files with secrets often end with a line break. A
/// file that is empty, or that contains only a line break, counts as unreadable.
fn file_content(path: &str) -> Result<String, ExpandError> {
    let invalid = |words: String| Err(ExpandError::Invalid(words));
    if !Path::new(path).is_absolute() {
        return invalid(format!("`${{file:{path}}}` must name an absolute path"));
    }
    let failed = |error: io::Error| {
        let words = format!("{path}: {error}");
        // The content is not UTF-8.
        if error.kind() == io::ErrorKind::InvalidData {
            return ExpandError::Invalid(words);
        }
        ExpandError::Unreadable(words)
    };
    // Opening a special file, such as a named pipe, may wait for ever.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return invalid(format!("{path} is not a regular file"));
    }
    let mut content = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_SIZE_LIMIT + 1).read_to_string(&mut content).map_err(failed)?;
    if content.len() as u64 > FILE_SIZE_LIMIT {
        return invalid(format!("{path} has more than {FILE_SIZE_LIMIT} bytes"));
    }
    let line = content.strip_suffix('\n').unwrap_or(&content);
    let line = line.strip_suffix('\r').unwrap_or(line);
    // Another program may have truncated the file to write a new secret.
    if line.is_empty() {
        return Err(ExpandError::Unreadable(format!("{path} is empty")));
    }
    Ok(line.to_owned())
}

fn variable(inside: &str, env: EnvLookup<'_>) -> Result<String, ExpandError> {
    if let Some(path) = inside.strip_prefix(FILE_PREFIX) {
        return file_content(path);
    }
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if name.is_empty() || !letters || name.starts_with(|c: char| c.is_ascii_digit()) {
        // The error does not show the text, which may be a part of a password.
        return Err(ExpandError::Invalid(
            "the text between `${` and `}` is not a variable: write `${NAME}`, `${NAME:-default}` or \
             `${file:/path}`, or `$${` for a literal `${`"
                .to_owned(),
        ));
    }
    // With a default, an empty variable counts as unset, as in a shell.
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(ExpandError::Invalid(format!(
            "the environment variable {name} is not set: set it, or write `${{{name}:-default}}`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::{ExpandError, expand, has_environment_variable};

    fn env(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("broker".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn file_variable_is_the_content_without_its_line_break() {
        let file = std::env::temp_dir().join(format!("ordain-expand-{}", std::process::id()));
        std::fs::write(&file, "s3cr3t\r\n").expect("a file");
        let text = format!("amqp://a:${{file:{}}}@h", file.display());
        let found = expand(&text, &env).map(|(text, has)| (text.into_owned(), has));
        for empty in ["", "\n"] {
            std::fs::write(&file, empty).expect("a file");
            let error = expand(&text, &env).expect_err("an empty file");
            let is_unreadable = matches!(error, ExpandError::Unreadable(_));
            assert!(is_unreadable && error.to_string().ends_with("is empty"), "{error}");
        }
        std::fs::remove_file(&file).expect("the file");
        assert_eq!(found, Ok(("amqp://a:s3cr3t@h".to_owned(), true)));
        for (text, words, is_unreadable) in [
            ("${file:secret}", "must name an absolute path", false),
            ("${file:/no/such/file}", "No such file", true),
            ("${file:/dev/null/file}", "Not a directory", true),
            ("${file:/dev/zero}", "is not a regular file", false),
            ("${file:/tmp}", "is not a regular file", false),
        ] {
            let error = expand(text, &env).expect_err(text);
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(matches!(error, ExpandError::Unreadable(_)), is_unreadable, "{error}");
        }
    }

    #[test]
    fn variables_of_the_environment_are_recognised() {
        for (text, has_variable) in [
            ("amqp://shop:secret@h", false),
            ("amqp://shop:$${PASSWORD}@h", false),
            ("amqp://shop:${file:/run/secret}@h", false),
            ("amqp://shop:${PASSWORD}@h", true),
            ("amqp://shop:${file:/run/secret}@${HOST:-h}", true),
        ] {
            assert_eq!(has_environment_variable(text), has_variable, "{text}");
        }
    }

    #[test]
    fn variables_are_replaced() {
        for (text, expected) in [
            ("plain {key} $HOME", Ok("plain {key} $HOME")),
            ("${HOST}", Ok("broker")),
            ("amqp://${HOST}:${PORT:-5672}/", Ok("amqp://broker:5672/")),
            ("${EMPTY}|${EMPTY:-x}|${NONE:-}", Ok("|x|")),
            ("$${HOST} ${HOST}", Ok("${HOST} broker")),
            ("${NONE}", Err("variable NONE is not set")),
            ("${HOST", Err("no closing `}`")),
            ("${}", Err("is not a variable")),
            ("${1X}", Err("is not a variable")),
            ("${A B}", Err("is not a variable")),
        ] {
            match (expand(text, &env), expected) {
                (Ok((found, _)), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(found), Err(expected)) => {
                    assert!(found.to_string().contains(expected), "{text}: {found}");
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
