//! The rows that the admin API returns and the command line shows: keys, dead letters, streams, handlers and instances.
//! The admin API and the command line build their rows here, so that their rows never differ. The command line also
//! reads the rows that the admin API of a running process returns.
//!
//! The fields of the row types have the names and the order of the JSON members. The command line can read the rows of
//! a process in another version: it ignores unknown members, and most fields have a default for a missing member.

mod data;
mod instances;
mod key;
mod letter;
mod plugins;
mod rows;
mod stream;
mod text;

use ordain_core::KeyStatus;
use ordain_util::command::PrintedCommand;
use serde::Serialize;

pub use data::JsonData;
pub use instances::{InstanceOverview, InstanceRow, InstancesPage, PartitionRow, ScaleReport};
pub use key::{AheadRow, AnswersRow, FailureRow, GapRow, HeldRow, KeyRow, KeysPage};
pub use letter::{DeadPage, EventRow, LetterRow};
pub use plugins::{
    FileRow, PluginRow, PluginsPage, RefusedRow, inspect_file, plugins_page, running_plugins_page,
};
pub use rows::{BoundedRows, LazyRows};
pub use stream::{
    BindingRow, ResumedPage, ResumedRow, StreamIntake, StreamRow, StreamVersion, StreamsPage,
    UnboundPage, pausing_spill_limit, queue_losses,
};
pub use text::RowText;

/// Formats a time of the store, given in ms since the Unix epoch. Up to the year 9999, the formatted times have the
/// same length, so the alphabetical order of the texts is the order of the times. A time that no timestamp can
/// represent is formatted as its number of ms.
pub fn time(ms: u64) -> String {
    jiff::Timestamp::from_millisecond(ms.cast_signed())
        .map_or_else(|_| format!("{ms} ms"), |time| format!("{time:.3}"))
}

/// Formats the time of an event, given in µs since the Unix epoch, with three or six digits after the seconds. A time
/// that no timestamp can represent is formatted as its number of µs.
fn event_time(us: u64) -> String {
    if us.is_multiple_of(1_000) {
        return time(us / 1_000);
    }
    jiff::Timestamp::from_microsecond(us.cast_signed())
        .map_or_else(|_| format!("{us} µs"), |time| format!("{time:.6}"))
}

/// Parses the name of a key's status. The error lists the valid names.
pub fn parse_status(text: &str) -> Result<KeyStatus, String> {
    KeyStatus::parse(text)
        .ok_or_else(|| format!("one of {}", KeyStatus::ALL.map(KeyStatus::name).join(", ")))
}

/// Returns a row, or a page of rows, as JSON.
pub fn to_json(shown: &impl Serialize) -> String {
    serde_json::to_string(shown).expect("texts, numbers and lists of them are always JSON")
}

/// Returns the error text for a key without a record in the store.
pub fn no_key(stream: &str, key: &str) -> String {
    format!(
        "key {key:?} of stream {stream} was never committed or held, or its record was removed. A new key gets a \
         record when its first event has been executed, or has waited for `spill_after`"
    )
}

/// Returns the error text for a text that is not an id of a dead letter. The error text names a command; `option`
/// selects the store or the process in this command.
pub fn no_letter_id(id: &str, stream: &str, option: &str) -> String {
    format!(
        "{id:?} is not the id of a dead letter: an id looks like 3-b05cb4f9ec0b9b83, see {}",
        PrintedCommand::new("dead list").argument(stream).with_place(option)
    )
}
