//! Finds the error of a handler's language in the text that the handler wrote to standard error. Each language
//! surrounds an uncaught error with text of its own. This module must never remove text of an unknown form.

/// The beginning of a Rust panic's text: the place of the panic, a colon, and the message on the next line.
const PANIC: &str = "panicked at ";
/// The beginning of the note that follows a Rust panic.
const PANIC_NOTE: &str = "\nnote: run with `RUST_BACKTRACE";

/// The first line of a Python traceback.
const TRACEBACK: &str = "Traceback (most recent call last):";
/// The lines that connect the traceback of an exception with the traceback of the exception that followed it.
const TRACEBACK_LINKS: [&str; 2] = [
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
];
/// The message of the panic by which the runtime of a Python component ends, after Python has printed the traceback.
const PYTHON_PANIC: &str = "Python function threw an unexpected exception";

/// The message of the panic by which the runtime of a QuickJS component ends.
const QUICKJS_PANIC: &str = "Failed to call '";

/// The line by which SpiderMonkey announces its end.
const SPIDERMONKEY_ABORT: &str = "Redirecting call to abort() to mozalloc_abort";
/// The text before and after an error that a SpiderMonkey component receives from a handler instead of a failure.
const SPIDERMONKEY_ERROR: (&str, &str) =
    ("invalid variant tag value `undefined` (received `", "`) specified for `Failure`");
/// The beginning of the generated code's stack. This stack contains no line of the handler.
const SPIDERMONKEY_STACK: &str = "\nStack:\n  export_";

/// The first words of the errors of Go, each at the beginning of a line.
const GO_ERRORS: [&str; 2] = ["panic: ", "fatal error: "];
/// The beginning of the stack of a Go error.
const GO_STACK: &str = "\ngoroutine ";

/// An uncaught error of a handler's language.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LanguageError {
    /// The error, without the text that the toolchain adds. If the form of the error is unknown, the whole output.
    pub(super) text: String,
    /// True if the text itself states that the error is uncaught.
    is_panic: bool,
}

impl LanguageError {
    /// Finds the error in the output to standard error.
    pub(super) fn find(stderr: &str) -> Self {
        let other = python(stderr).or_else(|| quickjs(stderr)).or_else(|| spidermonkey(stderr));
        if let Some(text) = other.or_else(|| go(stderr)) {
            return Self { text: text.trim().to_owned(), is_panic: false };
        }
        match rust(stderr) {
            Some(panic) => Self { text: panic.trim().replacen(":\n", ": ", 1), is_panic: true },
            None => Self { text: stderr.trim().to_owned(), is_panic: false },
        }
    }

    /// Returns the message of the failure.
    pub(super) fn uncaught(self) -> String {
        if self.is_panic { self.text } else { format!("uncaught error: {}", self.text) }
    }
}

/// Returns the text of the last Rust panic.
fn rust(stderr: &str) -> Option<&str> {
    let panic = &stderr[stderr.rfind(PANIC)?..];
    Some(panic.split(PANIC_NOTE).next().unwrap_or(panic))
}

/// Returns the text before the last Rust panic.
fn before_panic(stderr: &str) -> Option<&str> {
    let before = &stderr[..stderr.rfind(PANIC)?];
    // The panic begins with the name of its thread, on the same line.
    Some(&before[..before.rfind('\n').unwrap_or(0)])
}

/// Returns the traceback of a Python exception that a handler did not catch, with the tracebacks of its causes.
fn python(stderr: &str) -> Option<String> {
    let is_python = rust(stderr).is_some_and(|panic| panic.trim().ends_with(PYTHON_PANIC));
    let text = before_panic(stderr).filter(|before| is_python || before.contains(TRACEBACK));
    let text = text.unwrap_or(stderr);
    let Some(mut start) = text.rfind(TRACEBACK) else {
        // The beginning of a long traceback may be in the part of the output that is left out.
        return is_python.then(|| text.to_owned());
    };
    while let Some(previous) = text[..start].rfind(TRACEBACK) {
        let between = text[previous..start].trim_end();
        if !TRACEBACK_LINKS.iter().any(|link| between.ends_with(link)) {
            break;
        }
        start = previous;
    }
    Some(text[start..].to_owned())
}

/// Returns the message and the stack of an exception that QuickJS reports in the form of Rust's `Debug`.
fn quickjs(stderr: &str) -> Option<String> {
    let panic = rust(stderr)?;
    let value = &panic[panic.find(QUICKJS_PANIC)?..];
    let message = debug_text(value, "message: Some(\"")?;
    let stack = debug_text(value, "stack: Some(\"").unwrap_or_default();
    Some(format!("{message}\n{}", stack.trim_end()))
}

/// Returns the text of Rust's `Debug` form that follows `name`, without its escapes.
fn debug_text(value: &str, name: &str) -> Option<String> {
    let mut rest = value[value.find(name)? + name.len()..].chars();
    let mut text = String::new();
    loop {
        match rest.next()? {
            '"' => return Some(text),
            '\\' => text.push(escaped(&mut rest)?),
            plain => text.push(plain),
        }
    }
}

/// Returns the character of an escape, whose backslash has been read.
fn escaped(rest: &mut std::str::Chars<'_>) -> Option<char> {
    match rest.next()? {
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        '0' => Some('\0'),
        'u' => {
            let digits: String = rest.take_while(|c| *c != '}').skip(1).collect();
            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
        }
        plain => Some(plain),
    }
}

/// Returns the error of a JavaScript handler on SpiderMonkey, without the lines of the generated code.
fn spidermonkey(stderr: &str) -> Option<String> {
    let text = &stderr[..stderr.rfind(SPIDERMONKEY_ABORT)?];
    let text = &text[..text.rfind(SPIDERMONKEY_STACK).unwrap_or(text.len())];
    let (prefix, suffix) = SPIDERMONKEY_ERROR;
    let Some(at) = text.rfind(prefix) else { return Some(text.to_owned()) };
    let (before, received) = (&text[..at], &text[at + prefix.len()..]);
    let received = received.rfind(suffix).map_or(received, |end| &received[..end]);
    // A handler may have written the error with its stack, and then thrown the error again.
    let is_written = !received.is_empty() && before.contains(received);
    Some(if is_written { before } else { received }.to_owned())
}

/// Returns the last error of Go, with the stacks of the goroutines.
fn go(stderr: &str) -> Option<String> {
    let before_stack = &stderr[..stderr.rfind(GO_STACK)?];
    let starts = GO_ERRORS.iter().filter_map(|error| {
        let later = before_stack.rfind(&format!("\n{error}")).map(|at| at + 1);
        later.or_else(|| before_stack.starts_with(error).then_some(0))
    });
    Some(stderr[starts.max()?..].to_owned())
}

#[cfg(test)]
mod tests;
