//! The rows that the admin API answers and the command line shows: keys, dead letters, streams, handlers
//! and instances. Both make a row here, so that they never differ; the command line also reads the rows
//! that a process answers.
//!
//! Members are named and ordered as in JSON. A member that a process of another version does not send has
//! its default, and members that are not known here are ignored.

mod data;
mod instances;
mod key;
mod letter;
mod plugins;
mod rows;
mod stream;
mod text;

use ordain_core::Status;
use serde::Serialize;

pub use data::Data;
pub use instances::{InstanceRow, Instances, InstancesPage, PartitionRow, Scale};
pub use key::{AnswersRow, GapRow, HeldRow, KeyRow, KeysPage, TroubleRow};
pub use letter::{DeadPage, EventRow, LetterRow};
pub use plugins::{FileRow, PluginRow, Plugins, RefusedRow, look_into, plugins, running_plugins};
pub use rows::{Made, Rows};
pub use stream::{Executing, StreamRow, StreamsPage};
pub use text::Text;

/// Formats a time of the store. All times have the same length, so that an earlier one sorts before a
/// later one.
pub fn time(ms: u64) -> String {
    jiff::Timestamp::from_millisecond(ms.cast_signed())
        .map_or_else(|_| format!("{ms} ms"), |time| format!("{time:.3}"))
}

/// Reads the name of a status; the error lists the names.
pub fn parse_status(text: &str) -> Result<Status, String> {
    Status::parse(text)
        .ok_or_else(|| format!("one of {}", Status::ALL.map(Status::name).join(", ")))
}

/// Returns the JSON of rows.
pub fn to_json(shown: &impl Serialize) -> String {
    serde_json::to_string(shown).expect("texts, numbers and lists of them are always JSON")
}

/// Returns the error for a key that is not there.
pub fn no_key(stream: &str, key: &str) -> String {
    format!(
        "key {key:?} of stream {stream} has never been committed or held, or is forgotten: what has just come \
         stands here once it is executed, or after `spill_after`"
    )
}

/// Returns the error for a text that is no id of a dead letter.
pub fn no_letter_id(id: &str) -> String {
    format!(
        "{id:?} is no id of a dead letter: they look like 3-b05cb4f9ec0b9b83, see `ordain dead list`"
    )
}
