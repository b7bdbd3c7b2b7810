//! Values that the file writes as one text, number or switch (`true` or `false`).

use toml::de::DeValue;

use super::reader::{ConfigReader, SettingNode, SettingValue, describe};

/// The description of a value that an error must not show.
const HIDDEN_VALUE: &str = "another value (not shown)";

/// A value that the file writes as one text, number or switch.
pub(super) trait Scalar: Sized {
    /// Description of a valid value.
    const FORM: &'static str;
    /// True if the file writes the value in quotes; false for a number, `true` or `false`. A file may also write a
    /// number or a switch as a text in quotes that contains a variable, such as `"${PORT}"`.
    const IS_QUOTED: bool = true;
    /// True if the file may also write the value without quotes.
    const ALLOWS_BARE: bool = !Self::IS_QUOTED;
    /// True if errors must not show the value.
    const IS_SECRET: bool = false;
    /// True if errors must not show the values of variables in the text.
    const HIDES_VARIABLES: bool = false;

    /// Parses the text of the value. If the value is invalid, returns a hint as the error. The message of the problem
    /// shows the hint after the expected form. The hint may be empty.
    fn parse(text: &str) -> Result<Self, String>;

    /// Gives a value its template: the text of the setting before its variables were replaced by their values. A value
    /// that rereads its variables while the process runs keeps the template; other values ignore the template.
    fn with_template(self, _text: &str, _template: &str) -> Result<Self, String> {
        Ok(self)
    }

    /// See [`SettingValue::within`].
    fn within(&self, _low: &Self, _high: &Self) -> bool {
        true
    }

    /// See [`SettingValue::placeholder`].
    fn placeholder() -> Option<Self> {
        None
    }
}

impl<T: Scalar> SettingValue for T {
    const FORM: &'static str = T::FORM;

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let (text, shown) = match node.value {
            DeValue::String(text) => {
                let (expanded, variables) = reader.expand_variables(node, text)?;
                if !T::IS_QUOTED && !variables {
                    reader.report_wrong_form(node, T::FORM);
                    return None;
                }
                let shown = match describe(node.value) {
                    shown if variables && !T::HIDES_VARIABLES => {
                        format!("{shown}, which is {expanded:?}")
                    }
                    shown => shown,
                };
                (expanded.into_owned(), shown)
            }
            DeValue::Integer(number) if T::ALLOWS_BARE => {
                let text = i128::from_str_radix(number.as_str(), number.radix())
                    .map_or_else(|_| number.to_string(), |number| number.to_string());
                (text, number.to_string())
            }
            DeValue::Boolean(value) if T::ALLOWS_BARE => (value.to_string(), value.to_string()),
            // A secret without quotes, such as a token of digits, arrives here as a number. The error must not show
            // that number.
            _ if T::IS_SECRET => {
                let message = format!("expected {}, found {HIDDEN_VALUE}", T::FORM);
                reader.report(node.line, &node.name, message);
                return None;
            }
            _ => {
                reader.report_wrong_form(node, T::FORM);
                return None;
            }
        };
        let value = T::parse(&text).and_then(|value| match node.value {
            DeValue::String(template) => value.with_template(&text, template),
            _ => Ok(value),
        });
        match value {
            Ok(value) => Some(value),
            Err(hint) => {
                let found = if T::IS_SECRET { HIDDEN_VALUE } else { &shown };
                let hint = if hint.is_empty() { hint } else { format!("; {hint}") };
                let message = format!("expected {}, found {found}{hint}", T::FORM);
                reader.report(node.line, &node.name, message);
                None
            }
        }
    }

    fn placeholder() -> Option<Self> {
        <T as Scalar>::placeholder()
    }

    fn within(&self, low: &Self, high: &Self) -> bool {
        Scalar::within(self, low, high)
    }
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Scalar for $type {
            const FORM: &'static str = "a whole number";
            const IS_QUOTED: bool = false;

            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| String::new())
            }

            fn within(&self, low: &Self, high: &Self) -> bool {
                (low..=high).contains(&self)
            }
        }
    )+};
}

numbers!(u32, u64, usize);

impl Scalar for bool {
    const FORM: &'static str = "`true` or `false`";
    const IS_QUOTED: bool = false;

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| String::new())
    }
}

/// Implements [`Scalar`] for a type that is written as one of several names.
macro_rules! choice {
    ($type:ty { $first:literal => $value:expr, $($name:literal => $other:expr,)* }) => {
        impl $crate::scalar::Scalar for $type {
            const FORM: &'static str = concat!("\"", $first, "\"" $(, " or \"", $name, "\"")*);

            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $first => Ok($value),
                    $($name => Ok($other),)*
                    _ => Err($crate::suggest::nearest(text, [$first $(, $name)*])
                        .map_or_else(String::new, |meant| format!("did you mean \"{meant}\"?"))),
                }
            }
        }
    };
}

pub(super) use choice;
