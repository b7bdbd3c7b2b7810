//! Values that are one word of the file: numbers, switches, choices between names.

use toml::de::DeValue;

use super::reader::{Node, Reader, Setting, describe};

/// A value that is written as one text, number or switch.
pub(super) trait Scalar: Sized {
    /// What is right, in words.
    const FORM: &'static str;
    /// Written with quotes; else without, as a number or switch. A text that contains variables
    /// may stand for either.
    const QUOTED: bool = true;
    /// May be written without quotes too, though `QUOTED`.
    const BARE: bool = !Self::QUOTED;
    /// No error repeats its text.
    const SECRET: bool = false;
    /// No error repeats what variables have put into it.
    const VEILED: bool = false;

    /// Reads the text. The error, if not empty, is a hint to add to the form.
    fn parse(text: &str) -> Result<Self, String>;

    /// See [`Setting::within`].
    fn within(&self, _low: &Self, _high: &Self) -> bool {
        true
    }

    /// See [`Setting::stand_in`].
    fn stand_in() -> Option<Self> {
        None
    }
}

impl<T: Scalar> Setting for T {
    const FORM: &'static str = T::FORM;

    fn read(reader: &mut Reader<'_>, node: &Node<'_>) -> Option<Self> {
        let (text, shown) = match node.value {
            DeValue::String(text) => {
                let (expanded, variables) = reader.expanded(node, text)?;
                if !T::QUOTED && !variables {
                    reader.refuse(node, T::FORM);
                    return None;
                }
                let shown = match describe(node.value) {
                    shown if variables && !T::VEILED => format!("{shown}, which is {expanded:?}"),
                    shown => shown,
                };
                (expanded.into_owned(), shown)
            }
            DeValue::Integer(number) if T::BARE => {
                let text = i128::from_str_radix(number.as_str(), number.radix())
                    .map_or_else(|_| number.to_string(), |number| number.to_string());
                (text, number.to_string())
            }
            DeValue::Boolean(value) if T::BARE => (value.to_string(), value.to_string()),
            _ => {
                reader.refuse(node, T::FORM);
                return None;
            }
        };
        match T::parse(&text) {
            Ok(value) => Some(value),
            Err(hint) => {
                let found = if T::SECRET { "something else" } else { &shown };
                let hint = if hint.is_empty() { hint } else { format!("; {hint}") };
                let message = format!("expected {}, found {found}{hint}", T::FORM);
                reader.note(node.line, &node.name, message);
                None
            }
        }
    }

    fn stand_in() -> Option<Self> {
        <T as Scalar>::stand_in()
    }

    fn within(&self, low: &Self, high: &Self) -> bool {
        Scalar::within(self, low, high)
    }
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Scalar for $type {
            const FORM: &'static str = "a whole number";
            const QUOTED: bool = false;

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
    const QUOTED: bool = false;

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| String::new())
    }
}

/// Makes a type one of several names.
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
