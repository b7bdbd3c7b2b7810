//! `${NAME}` and `${NAME:-default}` in text values. `$${` stands for `${`.

use std::borrow::Cow;

/// How a variable of the environment is looked up; an argument so that tests need none.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Puts the variables in. The flag tells whether there were any.
pub(super) fn expand<'a>(text: &'a str, env: Env<'_>) -> Result<(Cow<'a, str>, bool), String> {
    if !text.contains("${") {
        return Ok((Cow::Borrowed(text), false));
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut any = false;
    while let Some(start) = rest.find("${") {
        if rest[..start].ends_with('$') {
            out.push_str(&rest[..start]);
            out.push('{');
            rest = &rest[start + 2..];
            continue;
        }
        out.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let end = inside.find('}').ok_or("`${` without its `}`; `$${` stands for a plain `${`")?;
        out.push_str(&variable(&inside[..end], env)?);
        any = true;
        rest = &inside[end + 1..];
    }
    out.push_str(rest);
    Ok((Cow::Owned(out), any))
}

fn variable(inside: &str, env: Env<'_>) -> Result<String, String> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if name.is_empty() || !letters || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!(
            "`${{{inside}}}` names no variable: `${{NAME}}` or `${{NAME:-default}}` is right, \
             and `$${{` stands for a plain `${{`"
        ));
    }
    // An empty variable counts as unset for the default, as in a shell.
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
    fn variables_are_put_in() {
        for (text, expected) in [
            ("plain {key} $HOME", Ok("plain {key} $HOME")),
            ("${HOST}", Ok("broker")),
            ("amqp://${HOST}:${PORT:-5672}/", Ok("amqp://broker:5672/")),
            ("${EMPTY}|${EMPTY:-x}|${NONE:-}", Ok("|x|")),
            ("$${HOST} ${HOST}", Ok("${HOST} broker")),
            ("${NONE}", Err("variable NONE is not set")),
            ("${HOST", Err("without its `}`")),
            ("${}", Err("names no variable")),
            ("${1X}", Err("names no variable")),
            ("${A B}", Err("names no variable")),
        ] {
            match (expand(text, &env), expected) {
                (Ok((found, _)), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{text}: {found}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
