//! Replaces `${NAME}` and `${NAME:-default}` in text values. `$${` is a literal `${`.

use std::borrow::Cow;

/// A function that looks up an environment variable. It is a parameter, so that tests do not depend on the
/// environment.
pub(super) type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Replaces the variables in a text. The returned flag is `true` if the text contained variables.
pub(super) fn expand<'a>(
    text: &'a str,
    env: EnvLookup<'_>,
) -> Result<(Cow<'a, str>, bool), String> {
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
        let end =
            inside.find('}').ok_or("`${` has no closing `}`; write `$${` for a literal `${`")?;
        out.push_str(&variable(&inside[..end], env)?);
        has_variables = true;
        rest = &inside[end + 1..];
    }
    out.push_str(rest);
    Ok((Cow::Owned(out), has_variables))
}

fn variable(inside: &str, env: EnvLookup<'_>) -> Result<String, String> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if name.is_empty() || !letters || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!(
            "`${{{inside}}}` is not a variable: write `${{NAME}}` or `${{NAME:-default}}`, or `$${{` \
             for a literal `${{`"
        ));
    }
    // With a default, an empty variable counts as unset, as in a shell.
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!(
            "the environment variable {name} is not set: set it, or write `${{{name}:-default}}`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::expand;

    fn env(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("broker".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
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
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{text}: {found}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
