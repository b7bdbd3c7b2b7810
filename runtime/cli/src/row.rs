//! A row of a listing, as the store's view or a running process gives it. What people see of it is
//! cleaned here, whoever wrote it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use ordain_cloudevents::compact;
use ordain_util::text::clean;

/// What events and handlers wrote, which people read in JSON only. It may be large and nested.
const DATA: [&str; 3] = ["event", "raw", "state"];

/// A row: JSON, of which no tree is made until it is looked into.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Row(Box<RawValue>);

impl Row {
    /// What is shown as a row.
    pub(crate) fn of(shown: &impl Serialize) -> Self {
        let json = to_raw_value(shown);
        Self(json.expect("texts, numbers and lists of them are always JSON"))
    }

    /// Its JSON, on one line.
    pub(crate) fn json(&self) -> Cow<'_, str> {
        // What is nested deeper came from nothing of this version.
        compact(self.0.get()).unwrap_or(Cow::Borrowed(self.0.get()))
    }

    /// Its JSON, to be shown over several lines; `None` if it is nested too deeply for that.
    pub(crate) fn tree(&self) -> Option<Value> {
        serde_json::from_str(self.0.get()).ok()
    }

    /// A member of it.
    pub(crate) fn member<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Option<T> {
        let mut members = self.members()?;
        serde_json::from_str(members.remove(name)?.get()).ok()
    }

    /// What people see of it: all but data, and no text of it steers a terminal or hides anything.
    /// Nothing at all, if it is no object.
    pub(crate) fn fields(&self) -> Value {
        let mut fields = Value::Null;
        for (name, value) in self.members().unwrap_or_default() {
            if !DATA.contains(&&*name)
                && let Ok(value) = serde_json::from_str(value.get())
            {
                fields[&*name] = cleaned(value);
            }
        }
        fields
    }

    fn members(&self) -> Option<BTreeMap<Cow<'_, str>, &RawValue>> {
        serde_json::from_str(self.0.get()).ok()
    }
}

fn cleaned(value: Value) -> Value {
    match value {
        Value::String(text) => clean(&text).into(),
        Value::Array(values) => values.into_iter().map(cleaned).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (name, cleaned(value))).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_clean_and_without_data() {
        let deep = "[".repeat(1_000) + &"]".repeat(1_000);
        let text = format!(
            "{{\n \"state\": {deep}, \"key\": \"a\\u001b[2J\\n\",\n \"list\": [{{\"b\": \"\\u202e\"}}]}}"
        );
        let row: Row = serde_json::from_str(&text).unwrap();
        let right = json!({ "key": "a\\u001b[2J\\n", "list": [{ "b": "\\u202e" }] });
        assert_eq!(row.fields(), right);
        assert_eq!(row.member::<String>("key").unwrap(), "a\u{1b}[2J\n");
        assert!(row.tree().is_none());
        assert_eq!(Row::of(&json!([1])).fields(), Value::Null);
        assert_eq!(serde_json::from_str::<Row>("{\n\"a\" : 1 }").unwrap().json(), "{\"a\":1}");
    }
}
