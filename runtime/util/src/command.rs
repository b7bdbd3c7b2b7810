//! Commands in printed texts. A user must be able to run each printed command unchanged, in a shell that supports the
//! quotes `$'…'`, such as Bash. Other modules must not write such commands by themselves.

use std::fmt;
use std::sync::OnceLock;

use crate::text::shell_quoted;

static CONFIG_OPTION: OnceLock<String> = OnceLock::new();
static PROCESS_OPTION: OnceLock<String> = OnceLock::new();

/// Sets the option that selects the configuration of this process. `option` begins with a space, or is empty for the
/// default configuration. The commands in the logs and errors of the process contain this option. Only the first call
/// has an effect.
pub fn set_config_option(option: String) {
    // A process has only one configuration.
    let _ = CONFIG_OPTION.set(option);
}

/// Returns the option that [`set_config_option`] has set; before the first call of that function, an empty text.
pub fn config_option() -> &'static str {
    CONFIG_OPTION.get().map_or("", String::as_str)
}

/// Sets the option with which a command sends its request to this process. `option` begins with a space. If a command
/// finds this process through the configuration, no option is necessary, and the caller does not call this function.
/// Only the first call has an effect.
pub fn set_process_option(option: String) {
    // A process has only one admin listener.
    let _ = PROCESS_OPTION.set(option);
}

/// Returns the option with which a command sends its request to the admin listener at `url`. The option begins with a
/// space.
pub fn admin_option(url: &str) -> String {
    format!(" --admin {}", shell_quoted(url))
}

/// A command of `ordain` in a printed text, in backticks. All words of the user are quoted for a shell. Without
/// [`with_place`](Self::with_place), the command uses the configuration of this process.
#[derive(Debug, Clone)]
#[must_use = "a command has an effect only when it is printed"]
pub struct PrintedCommand {
    /// The command with its options, and the arguments before the first argument with a leading hyphen.
    line: String,
    /// The option that selects the store or the process; empty, or with a leading space.
    place: String,
    /// The first argument with a leading hyphen, and all arguments after it; empty, or with a leading space.
    rest: String,
}

impl PrintedCommand {
    /// Begins the command with words that need no quotes, such as `keys list`.
    pub fn new(words: &str) -> Self {
        Self {
            line: format!("ordain {words}"),
            place: config_option().to_owned(),
            rest: String::new(),
        }
    }

    /// Adds an argument. If the argument begins with a hyphen, `--` precedes it, because the command would otherwise
    /// read the argument as an option.
    pub fn argument(mut self, argument: &str) -> Self {
        let is_after_hyphens = !self.rest.is_empty() || argument.starts_with('-');
        if is_after_hyphens && self.rest.is_empty() {
            self.rest += " --";
        }
        let part = if is_after_hyphens { &mut self.rest } else { &mut self.line };
        *part += &format!(" {}", shell_quoted(argument));
        self
    }

    /// Adds an option with one of its known values. These values need no quotes. `name` has no hyphens.
    pub fn choice(mut self, name: &str, value: &str) -> Self {
        self.line += &format!(" --{name} {value}");
        self
    }

    /// Adds an option with a value. `name` has no hyphens.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        // If a space preceded a value with a leading hyphen, the command could read the value as another option.
        self.line += &format!(" --{name}={}", shell_quoted(value));
        self
    }

    /// Makes the command use the store or the process that an option selects, instead of the configuration of this
    /// process. `option` begins with a space, or is empty.
    pub fn with_place(self, option: &str) -> Self {
        Self { place: option.to_owned(), ..self }
    }

    /// Makes the command send its request to this process.
    pub fn for_this_process(self) -> Self {
        match PROCESS_OPTION.get() {
            Some(option) => self.with_place(option),
            // The command finds this process through the configuration.
            None => self,
        }
    }
}

/// Writes the command in backticks, on one line.
impl fmt::Display for PrintedCommand {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, place, rest } = self;
        write!(out, "`{line}{place}{rest}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_with_a_leading_hyphen_is_no_option() {
        let why = |key: &str| {
            PrintedCommand::new("keys why")
                .argument("orders")
                .argument(key)
                .with_place(" --config other.toml")
                .to_string()
        };
        assert_eq!(why("order-17"), "`ordain keys why orders order-17 --config other.toml`");
        assert_eq!(why("-5"), "`ordain keys why orders --config other.toml -- '-5'`");
        assert_eq!(why("--help"), "`ordain keys why orders --config other.toml -- '--help'`");
        let show = PrintedCommand::new("dead show").argument("-a").argument("1-2");
        assert_eq!(
            show.option("key", "-5").to_string(),
            "`ordain dead show --key='-5' -- '-a' 1-2`"
        );
    }

    #[test]
    fn words_are_quoted_and_contain_no_backtick() {
        let command = PrintedCommand::new("dead list").argument("a b").option("key", "`id`\n");
        assert_eq!(command.to_string(), r"`ordain dead list 'a b' --key=$'\140id\140\012'`");
    }

    #[test]
    fn option_of_a_process_is_quoted() {
        assert_eq!(admin_option("http://127.0.0.1:7070"), " --admin http://127.0.0.1:7070");
        assert_eq!(admin_option("http://[::1]:7070"), " --admin 'http://[::1]:7070'");
    }
}
