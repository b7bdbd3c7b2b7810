//! `[streams.NAME] types`: the types of events that the handler of a stream executes.

use ordain_core::TypePattern;

use super::reader::{ConfigReader, SettingNode, SettingValue};
use super::scalar::Scalar;

/// Maximum number of elements of `types`. Ordain compares each event with one pattern after the other.
const PATTERNS_LIMIT: usize = 64;

/// Size limit of a pattern, in bytes. The type of an event has the same limit.
const PATTERN_LIMIT_BYTES: usize = 4 << 10;

impl Scalar for TypePattern {
    const FORM: &'static str =
        "an event type of at most 4096 bytes such as \"order.*\"; each `*` matches any characters";

    fn parse(text: &str) -> Result<Self, String> {
        if text.len() > PATTERN_LIMIT_BYTES {
            return Err(String::new());
        }
        if text != text.trim() || text.contains(char::is_control) {
            return Err(
                "write it without control characters, and without blanks at its ends".to_owned()
            );
        }
        let words: Vec<&str> = text.split('.').collect();
        if words.contains(&"#") {
            let stars = words.into_iter().map(|word| if word == "#" { "*" } else { word });
            let meant = stars.collect::<Vec<_>>().join(".");
            return Err(format!("only `*` matches other characters; did you mean {meant:?}?"));
        }
        Ok(Self::new(text))
    }
}

impl SettingValue for Vec<TypePattern> {
    const FORM: &'static str =
        "an array of 1 to 64 event types such as [\"order.*\"]; each `*` matches any characters";

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let elements = reader.elements(node, <Self as SettingValue>::FORM)?;
        let wrong = match elements.len() {
            0 => Some("the array is empty; leave out the setting to execute events of all types"),
            1..=PATTERNS_LIMIT => None,
            _ => Some("the array has more than 64 elements"),
        };
        if let Some(wrong) = wrong {
            let message = format!("expected {}, but {wrong}", <Self as SettingValue>::FORM);
            reader.report(node.line, &node.name, message);
            return None;
        }
        let found: Vec<_> = elements
            .iter()
            .map(|element| <TypePattern as SettingValue>::read(reader, element))
            .collect();
        let found: Self = found.into_iter().collect::<Option<_>>()?;
        if let Some(index) = (1..found.len()).find(|index| found[..*index].contains(&found[*index]))
        {
            let message = "is in the array twice: remove one of the two";
            reader.report(elements[index].line, &elements[index].name, message);
            return None;
        }
        Some(found)
    }
}
