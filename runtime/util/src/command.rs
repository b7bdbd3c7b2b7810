//! Commands in printed texts. A user must be able to run each printed command unchanged, in a shell that supports the
//! quotes `$'…'`, such as Bash.

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::text::shell_quoted;

static CONFIG_OPTION: OnceLock<String> = OnceLock::new();

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

/// Returns the last argument of a command, quoted for a shell. An argument that could be taken for an option follows
/// `--`, so no option may follow the argument.
pub fn last_argument(argument: &str) -> Cow<'_, str> {
    let quoted = shell_quoted(argument);
    if argument.starts_with('-') { Cow::Owned(format!("-- {quoted}")) } else { quoted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_argument_is_no_option() {
        assert_eq!(last_argument("order-17"), "order-17");
        assert_eq!(last_argument("-5"), "-- '-5'");
        assert_eq!(last_argument("--help"), "-- '--help'");
    }
}
