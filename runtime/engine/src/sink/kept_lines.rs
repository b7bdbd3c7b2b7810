//! The kept lines of a file sink. The store has not recorded these lines as published. A start nevertheless keeps these
//! lines in the file, because the store has gone back to a time before the sink wrote them.
//!
//! The outbox (committed messages that are not published yet) of such a store may contain messages that the file
//! already has. The sink must not write these messages a second time. This module finds the lines of these messages,
//! and recognises the messages when the publisher passes them to the sink. The store's mark of the file contains the
//! range of the kept lines until the sink has skipped the messages. If the process ends before that, the next start
//! reads the range again.
//!
//! This module keeps in memory only the lines whose messages are in the outbox, so the outbox limits this memory.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::content::SinkContent;
use ordain_core::digest;

/// Maximum size of a line that Ordain may have written, in bytes: an event of the largest size, in base64.
const LINE_BYTES: u64 = 128 << 20;
/// The beginning of the attribute `source` of all messages and dead letters of Ordain.
const OWN_SOURCE: &str = "/ordain/";

/// The attributes that identify a line.
#[derive(Deserialize)]
struct LineIdentity<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    source: Cow<'a, str>,
    /// The number of the message, if the sink is sequenced.
    #[serde(borrow)]
    sequence: Option<&'a RawValue>,
}

/// A line whose message is in the outbox.
#[derive(Debug)]
pub(super) struct UnpublishedLine {
    /// The number of the message in the line; `None` if the line has no number.
    number: Option<u64>,
    /// A digest of the whole line.
    digest: u64,
}

/// The lines in a part of a sink file, compared with the outbox.
pub(super) struct ComparedLines {
    /// The end of the last complete line.
    pub(super) complete_length: u64,
    /// For each stream, the number of lines with messages of the stream that are not in the outbox.
    pub(super) lost: BTreeMap<String, u64>,
    /// The lines whose messages are in the outbox, by the ids of the messages.
    pub(super) unpublished: HashMap<String, UnpublishedLine>,
}

impl ComparedLines {
    /// Reads a part of the file. `range` must begin at the beginning of a line. `outbox` contains the ids of the
    /// messages in the outbox.
    pub(super) fn read(
        file: &File,
        range: Range<u64>,
        outbox: &HashSet<String>,
    ) -> io::Result<Self> {
        let mut reader = BufReader::new(file);
        let mut at = reader.seek(SeekFrom::Start(range.start))?;
        let mut compared =
            Self { complete_length: at, lost: BTreeMap::new(), unpublished: HashMap::new() };
        let mut line = Vec::new();
        let mut is_continuation = false;
        loop {
            line.clear();
            let limit = LINE_BYTES.min(range.end.saturating_sub(at));
            let read = reader.by_ref().take(limit).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(compared);
            }
            at += read as u64;
            let is_whole = line.ends_with(b"\n");
            if is_whole {
                compared.complete_length = at;
            }
            if is_whole && !is_continuation {
                compared.add(&line, outbox);
            }
            // The rest of a line above the size limit is not a line of its own.
            is_continuation = !is_whole;
        }
    }

    /// Adds a complete line. Ignores lines of other programs.
    fn add(&mut self, line: &[u8], outbox: &HashSet<String>) {
        let Ok(identity) = serde_json::from_slice::<LineIdentity<'_>>(line) else { return };
        let LineIdentity { id, source, sequence } = identity;
        let Some(stream) = source.strip_prefix(OWN_SOURCE) else { return };
        if !outbox.contains(&*id) {
            *self.lost.entry(stream.to_owned()).or_default() += 1;
            return;
        }
        let number = sequence.and_then(|number| number.get().trim_matches('"').parse().ok());
        self.unpublished.insert(id.into_owned(), UnpublishedLine { number, digest: digest(line) });
    }
}

/// The kept lines of a file sink whose messages are in the outbox. A line is in this list until the publisher passes
/// the message of the line to the sink.
#[derive(Debug, Default)]
pub(super) struct KeptLines {
    /// A part of the file that contains all these lines.
    range: Range<u64>,
    /// The lines, by the ids of their messages.
    unpublished: HashMap<String, UnpublishedLine>,
}

impl KeptLines {
    /// Adds lines that are in `range`.
    pub(super) fn add(&mut self, range: Range<u64>, unpublished: HashMap<String, UnpublishedLine>) {
        if unpublished.is_empty() {
            return;
        }
        if self.unpublished.is_empty() {
            self.range = range;
        } else {
            self.range.start = self.range.start.min(range.start);
            self.range.end = self.range.end.max(range.end);
        }
        self.unpublished.extend(unpublished);
    }

    /// Returns the part of the file that contains the lines; `None` if there are no lines.
    pub(super) fn range(&self) -> Option<Range<u64>> {
        (!self.unpublished.is_empty()).then(|| self.range.clone())
    }

    /// Logs the number of lines, if there are any.
    pub(super) fn report(&self, path: &Path) {
        if !self.unpublished.is_empty() {
            tracing::info!(
                path = %path.display(), messages = self.unpublished.len(),
                "the sink file already has messages that the store has not recorded as published; Ordain does not \
                 write these messages again"
            );
        }
    }

    /// Removes the line of a message from the list. Returns whether the file already contains this message. If so, the
    /// sink must skip the message. `number` is the number that the store has given to the message.
    ///
    /// If a message has the id of a line but other content, another execution of the same event emitted the message.
    /// The sink must write such a message, because the store contains the result of this other execution.
    pub(super) fn take(
        &mut self,
        path: &Path,
        stream: &str,
        content: &SinkContent,
        number: Option<u64>,
    ) -> bool {
        if self.unpublished.is_empty() {
            return false;
        }
        let id = content.id(stream);
        let Some(line) = self.unpublished.remove(&id) else { return false };
        let mut encoded = Vec::new();
        // The number of the message in the store may differ from the number in the line. The number is not a part of
        // the message, so it must not count as a difference.
        content.encode(stream, line.number, &mut encoded);
        if digest(&encoded) != line.digest {
            tracing::warn!(
                path = %path.display(), id,
                "the store went back in time: the sink file has a message with the same id as an unpublished message \
                 of the store, but with other content. The line stays in the file, and Ordain also writes the message \
                 of the store"
            );
            return false;
        }
        if line.number != number {
            tracing::warn!(
                path = %path.display(), id, in_file = line.number, in_store = number,
                "the store went back in time and has given another number to a message that the sink file already \
                 has. Ordain does not write the message again, so the message keeps its earlier number in the file"
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ordain_core::{EmittedMessage, Message, MessageParts};
    use ordain_store::OutboxMessage;

    use super::*;
    use crate::sink::FileSink;

    /// Returns a message of event `sequence`.
    fn content(sequence: u64, data: &str) -> SinkContent {
        let parts = MessageParts { sink: "out", data: data.as_bytes(), ..MessageParts::default() };
        let message = Message::new(&parts);
        let emitted = EmittedMessage { sequence, index: 0, id_digest: 0, message };
        SinkContent::Message(OutboxMessage { key: "a".into(), incarnation: 1, emitted })
    }

    /// Returns the lines of messages of the stream `s`, each message with its number.
    fn lines(messages: &[(&SinkContent, Option<u64>)]) -> Vec<u8> {
        let mut lines = Vec::new();
        for (content, number) in messages {
            content.encode("s", *number, &mut lines);
        }
        lines
    }

    /// Returns the kept lines of a file with these lines. The messages of all lines are in the outbox.
    fn kept(lines: &[u8], outbox: &[&SinkContent]) -> KeptLines {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        fs::write(&path, lines).expect("written");
        let file = File::open(&path).expect("opened");
        let outbox = outbox.iter().map(|content| content.id("s")).collect();
        let range = 0..lines.len() as u64;
        let compared = ComparedLines::read(&file, range.clone(), &outbox).expect("read");
        assert!(compared.lost.is_empty());
        let mut kept = KeptLines::default();
        kept.add(range, compared.unpublished);
        kept
    }

    #[test]
    fn only_a_message_with_equal_content_is_skipped() {
        let one = content(1, "1");
        let two = content(2, "2");
        let other_two = content(2, "3");
        for number in [None, Some(7)] {
            let lines = lines(&[(&one, number), (&other_two, number)]);
            let mut kept = kept(&lines, &[&one, &two]);
            let mut takes =
                |content: &SinkContent| kept.take(Path::new("out"), "s", content, number);
            assert!(!takes(&content(3, "1")), "the file has no message of event 3");
            assert!(takes(&one));
            assert!(!takes(&one), "the file has the message only once");
            assert!(!takes(&two), "the line has other content");
            assert_eq!(kept.range(), None);
        }
    }

    #[test]
    fn message_with_another_number_is_skipped() {
        let one = content(1, "1");
        for (in_file, in_store) in [(Some(7), Some(5)), (None, Some(5)), (Some(7), None)] {
            let mut kept = kept(&lines(&[(&one, in_file)]), &[&one]);
            assert!(kept.take(Path::new("out"), "s", &one, in_store));
        }
    }

    #[test]
    fn mark_has_kept_lines_until_their_messages_are_skipped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let open = |mark: Option<&[u8]>| FileSink::open(&path, mark).expect("opened");
        let (sink, _) = open(None).finish(&HashSet::new()).expect("finished");
        let mut mark = sink.mark();
        let one = content(1, "1");
        let two = content(2, "2");
        fs::write(&path, lines(&[(&one, None), (&two, None)])).expect("written");
        let outbox = HashSet::from([one.id("s")]);
        let mut published = mark.clone();
        // The first process ends before the store has recorded that the message is published. The second process must
        // skip the message too.
        for lost in [Some(1), None] {
            let opened = open(Some(&mark.value));
            assert!(opened.needs_outbox());
            let (mut sink, counted) = opened.finish(&outbox).expect("finished");
            assert_eq!(counted.get("s").copied(), lost);
            mark = sink.mark();
            assert!(sink.take_kept("s", &one, None));
            assert!(!sink.take_kept("s", &two, None), "the message is not in the outbox");
            published = sink.mark();
        }
        assert!(!open(Some(&published.value)).needs_outbox());
    }
}
