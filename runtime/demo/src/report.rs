//! The result of the demo, as text for people and as JSON.

use std::path::Path;

use serde::Serialize;

use crate::check::InputCounts;

/// The result of the demo.
#[derive(Debug, Serialize)]
pub(crate) struct DemoReport<'a> {
    /// True if the output has no differences from the expected output.
    pub(crate) correct: bool,
    pub(crate) seed: u64,
    #[serde(flatten)]
    pub(crate) counts: &'a InputCounts,
    /// For each kill, the number of receipts at that time.
    pub(crate) kills: Vec<u64>,
    /// The duration of all runs, with their starts.
    pub(crate) seconds: f64,
    pub(crate) differences: Vec<String>,
    /// The folder with the files; `None` if the demo has removed them.
    pub(crate) folder: Option<&'a Path>,
}

impl DemoReport<'_> {
    pub(crate) fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("texts, numbers and lists can always be serialized") + "\n"
    }

    pub(crate) fn text(&self) -> String {
        let counts = self.counts;
        let rate = (counts.lines as f64 / self.seconds) as u64;
        let mut text = String::from("\n");
        let mut row = |name: &str, number: u64| {
            text += &format!("  {name:<28}{:>10}\n", count(number));
        };
        row("orders", counts.orders as u64);
        row("events in", counts.lines);
        row("  out of order", counts.out_of_order);
        row("  repeated", counts.repeated);
        row("events with effect", counts.with_effect);
        row("dead letters", counts.rejected);
        row("receipts out", counts.receipts);
        row("kills", self.kills.len() as u64);
        row("events per second", rate);
        text += &self.verdict();
        text + &self.next_steps()
    }

    fn verdict(&self) -> String {
        if self.correct {
            return format!(
                "\nCORRECT. Each order processed each of its events once and in order. Each impossible step is a dead \
                 letter.\nEach receipt was written exactly once, although the process was killed {} times.\n",
                self.kills.len()
            );
        }
        let mut text = String::from("\nINCORRECT\n");
        for difference in &self.differences {
            text += &format!("  {difference}\n");
        }
        text
    }

    fn next_steps(&self) -> String {
        let Some(folder) = self.folder else {
            return String::from(
                "\nTry next:\n  \
                 ordain new --lang ts greeter    creates a project with a handler of your own\n  \
                 ordain demo --keep demo         keeps the files of the demo\n  \
                 ordain --help                   lists the commands\n",
            );
        };
        format!(
            "\nTry next, in the folder {}:\n  ordain dead list orders --limit 5\n  ordain keys list orders --limit 5\n  \
             ordain check --explain\n",
            folder.display()
        )
    }
}

/// Formats a number with a comma between groups of three digits.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn groups_of_digits_are_separated() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
}
