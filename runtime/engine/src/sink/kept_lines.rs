//! The lines of a file sink that the store has not recorded as published. A start keeps the complete lines that Ordain
//! has written, for two reasons. First, consumers may have read these lines. Second, the outbox may lack the messages
//! of these lines: this is possible if an operator has restored a copy of the store that is older than the lines. A
//! start removes lines of Ordain in one case: the lines follow a line of another program, and the outbox has the
//! messages of all these lines of Ordain.
//!
//! The outbox may contain the messages of kept lines. The sink must not write these messages a second time. This module
//! finds the lines of these messages, and recognises the messages when the outbox publisher passes them to the sink.
//! The store's mark of the file contains the range of the kept lines until the sink has skipped the messages. If the
//! process ends earlier, the next start reads the range from the mark.
//!
//! During the comparison, a start has the messages of all outboxes in memory. Afterwards, this module keeps only the
//! ids and numbers of the messages whose lines are in the file. The limits of the outboxes limit the number of these
//! messages, and therefore also the number of these ids.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::content::SinkContent;
use ordain_cloudevents::TextForm;
use ordain_store::OutboxEntry;

/// Maximum size of a line that Ordain may have written, in bytes: an event of the largest size, in base64.
const LINE_BYTES: u64 = 128 << 20;
/// Every `source` of Ordain's messages and dead letters begins with this text.
const OWN_SOURCE: &str = "/ordain/";

#[derive(Deserialize)]
struct LineIdentity<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    source: Cow<'a, str>,
    #[serde(borrow)]
    sequence: Option<&'a RawValue>,
}

/// The messages and dead letters that a process finds in the outboxes at its start. Each id has its stream and its
/// content.
#[derive(Default)]
pub(crate) struct UnpublishedMessages(HashMap<String, (Arc<str>, SinkContent)>);

impl UnpublishedMessages {
    pub(crate) fn add_entry(&mut self, stream: &Arc<str>, entry: OutboxEntry) {
        for message in entry.messages {
            self.add(stream, SinkContent::Message(message));
        }
        for letter in entry.letters {
            self.add(stream, SinkContent::Letter(Box::new(letter)));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, stream: &Arc<str>, content: SinkContent) {
        self.0.insert(content.id(stream), (Arc::clone(stream), content));
    }

    /// Compares a line with the message that has the same id; `None` if the outbox has no such message. The message is
    /// encoded with `number`, the number in the line, because the outbox has no numbers. The line may come from an
    /// earlier version of Ordain, which encoded text as base64.
    fn has_line(&self, id: &str, number: Option<u64>, line: &[u8]) -> Option<bool> {
        let (stream, content) = self.0.get(id)?;
        let mut encoded = Vec::with_capacity(line.len());
        let mut is_line = |text_form| {
            encoded.clear();
            content.encode(stream, number, text_form, &mut encoded);
            encoded == line
        };
        Some(is_line(TextForm::Text) || is_line(TextForm::Base64))
    }
}

/// The lines in a part of a sink file, compared with the outbox.
#[derive(Default)]
pub(super) struct ComparedLines {
    /// The position after the last complete line. If the part has no complete line, the beginning of the part.
    pub(super) complete_length: u64,
    /// For each stream, the number of lines whose messages belong to this stream and are not in the outbox.
    pub(super) lost: BTreeMap<String, u64>,
    /// The number of lines with the id of a message of the outbox, but with other content. The store lacks the messages
    /// of these lines, because another execution of the same event emitted them. `lost` includes these lines.
    pub(super) differing: u64,
    /// The ids of the lines whose messages are in the outbox, each with the number of the message in the line; `None`
    /// if the line has no number.
    pub(super) unpublished: HashMap<String, Option<u64>>,
    /// The first line that Ordain has not written.
    foreign: Option<u64>,
    /// True if the outbox lacks the message of a line that follows the line at `foreign`.
    has_lost_after_foreign: bool,
}

impl ComparedLines {
    /// Reads a part of a file, and compares its lines with the outbox. `range` must begin at the beginning of a line,
    /// or before a line end that the sink added to a line of another program.
    pub(super) fn read(
        file: &File,
        range: Range<u64>,
        outbox: &UnpublishedMessages,
    ) -> io::Result<Self> {
        let mut reader = BufReader::new(file);
        let mut at = reader.seek(SeekFrom::Start(range.start))?;
        let mut compared = Self { complete_length: at, ..Self::default() };
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
            if is_whole && (is_continuation || !compared.add(&line, outbox)) {
                compared.foreign.get_or_insert(at - read as u64);
            }
            // The rest of a line above the size limit is not a line of its own.
            is_continuation = !is_whole;
        }
    }

    /// Returns `false` if another program wrote the line.
    fn add(&mut self, line: &[u8], outbox: &UnpublishedMessages) -> bool {
        // The sink wrote this line end, because another program had left its last line without a line end.
        if line == b"\n" {
            return true;
        }
        let Ok(identity) = serde_json::from_slice::<LineIdentity<'_>>(line) else { return false };
        let LineIdentity { id, source, sequence } = identity;
        let Some(stream) = source.strip_prefix(OWN_SOURCE) else { return false };
        let number = sequence.and_then(|number| number.get().trim_matches('"').parse().ok());
        let found = outbox.has_line(&id, number, line);
        if found == Some(true) {
            self.unpublished.insert(id.into_owned(), number);
            return true;
        }
        self.differing += u64::from(found.is_some());
        *self.lost.entry(stream.to_owned()).or_default() += 1;
        self.has_lost_after_foreign |= self.foreign.is_some();
        true
    }

    /// Returns the beginning of the part that a start can remove from the end of the file. The part begins with a line
    /// that Ordain has not written, and the outbox has all messages in the part. Returns `None` if there is no such
    /// part.
    pub(super) fn foreign_end(&self) -> Option<u64> {
        self.foreign.filter(|_| !self.has_lost_after_foreign)
    }
}

/// A line stays in this list until the outbox publisher passes its message to the sink.
#[derive(Debug, Default)]
pub(super) struct KeptLines {
    /// The part of the open file that contains the kept lines of this file; empty if all kept lines are in older files.
    range: Range<u64>,
    /// The numbers in the lines, by the ids of the messages.
    unpublished: HashMap<String, Option<u64>>,
}

impl KeptLines {
    /// Adds kept lines. `range` is the part of the open file that contains the lines; empty for lines of an older file.
    pub(super) fn add(&mut self, range: Range<u64>, unpublished: HashMap<String, Option<u64>>) {
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

    /// Returns whether the outbox publisher has passed the messages of all lines to the sink.
    pub(super) fn is_empty(&self) -> bool {
        self.unpublished.is_empty()
    }

    /// Returns the part of the open file that contains kept lines; `None` if the open file contains none.
    pub(super) fn range(&self) -> Option<Range<u64>> {
        (!self.unpublished.is_empty() && !self.range.is_empty()).then(|| self.range.clone())
    }

    /// Records that the sink has opened another file. The kept lines stay in the old file, so the sink still skips
    /// their messages.
    pub(super) fn leave_file(&mut self) {
        self.range = 0..0;
    }

    pub(super) fn report(&self, path: &Path) {
        if !self.unpublished.is_empty() {
            tracing::info!(
                path = %path.display(), messages = self.unpublished.len(),
                "the sink file already has messages that the store has not recorded as published; Ordain does not \
                 write these messages again"
            );
        }
    }

    /// Removes the line of a message from the list. Returns whether the list had this line. If the result is `true`,
    /// the sink must skip the message. `number` is the number that the store has given to the message.
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
        let Some(in_file) = self.unpublished.remove(&id) else { return false };
        if in_file != number {
            tracing::warn!(
                path = %path.display(), id, in_file, in_store = number,
                "the store went back in time and has given another number to a message that the sink file already \
                 has. Ordain does not write the message again, so the message keeps its earlier number in the file"
            );
        }
        true
    }
}

/// Logs the number of lines that have the ids of unpublished messages, but other content.
pub(super) fn report_differing(path: &Path, lines: u64) {
    if lines > 0 {
        tracing::warn!(
            path = %path.display(), lines,
            "the store went back in time: the sink file has messages with the same ids as unpublished messages of the \
             store, but with other content, because their events were executed again. These lines stay in the file, \
             and Ordain also writes the messages of the store"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ordain_core::{EmittedMessage, Message, MessageParts};
    use ordain_store::OutboxMessage;
    use ordain_store::published_file::PublishedFile;

    use super::*;
    use crate::sink::FileSink;

    fn content(sequence: u64, data: &str) -> SinkContent {
        let parts = MessageParts { sink: "out", data: data.as_bytes(), ..MessageParts::default() };
        let message = Message::new(&parts);
        let emitted = EmittedMessage { sequence, index: 0, event_digest: 0, message };
        SinkContent::Message(OutboxMessage { key: "a".into(), incarnation: 1, emitted })
    }

    fn lines(messages: &[(&SinkContent, Option<u64>)]) -> Vec<u8> {
        let mut lines = Vec::new();
        for (content, number) in messages {
            content.encode("s", *number, TextForm::Text, &mut lines);
        }
        lines
    }

    fn outbox(contents: &[&SinkContent]) -> UnpublishedMessages {
        let mut outbox = UnpublishedMessages::default();
        for content in contents {
            outbox.add(&"s".into(), (*content).clone());
        }
        outbox
    }

    fn compare(lines: &[u8], outbox: &UnpublishedMessages) -> ComparedLines {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        fs::write(&path, lines).expect("written");
        let file = File::open(&path).expect("opened");
        ComparedLines::read(&file, 0..lines.len() as u64, outbox).expect("read")
    }

    #[test]
    fn only_a_message_with_equal_content_is_skipped() {
        let one = content(1, "1");
        let two = content(2, "2");
        let other_two = content(2, "3");
        for number in [None, Some(7)] {
            let lines = lines(&[(&one, number), (&other_two, number)]);
            let compared = compare(&lines, &outbox(&[&one, &two]));
            assert_eq!((compared.differing, compared.lost.get("s").copied()), (1, Some(1)));
            let mut kept = KeptLines::default();
            kept.add(0..lines.len() as u64, compared.unpublished);
            let mut takes =
                |content: &SinkContent| kept.take(Path::new("out"), "s", content, number);
            assert!(!takes(&content(3, "1")), "the file has no message of event 3");
            assert!(takes(&one));
            assert!(!takes(&one), "the file has the message only once");
            assert!(!takes(&two), "the line has other content");
            assert_eq!(kept.range(), None);
        }
    }

    /// An earlier version of Ordain wrote text as base64.
    #[test]
    fn line_of_an_earlier_version_is_recognised() {
        let text = |data: &str| {
            let content_type = "text/plain";
            let data = data.as_bytes();
            let parts = MessageParts { sink: "out", content_type, data, ..MessageParts::default() };
            let message = Message::new(&parts);
            let emitted = EmittedMessage { sequence: 1, index: 0, event_digest: 0, message };
            SinkContent::Message(OutboxMessage { key: "a".into(), incarnation: 1, emitted })
        };
        for text_form in [TextForm::Text, TextForm::Base64] {
            let mut line = Vec::new();
            text("one").encode("s", None, text_form, &mut line);
            let compared = compare(&line, &outbox(&[&text("one")]));
            assert_eq!((compared.differing, compared.unpublished.len()), (0, 1), "{text_form:?}");
            let compared = compare(&line, &outbox(&[&text("two")]));
            assert_eq!((compared.differing, compared.unpublished.len()), (1, 0), "{text_form:?}");
        }
    }

    #[test]
    fn line_end_before_the_first_message_is_not_foreign() {
        let one = content(1, "1");
        let lines = [b"\n".to_vec(), lines(&[(&one, None)])].concat();
        let compared = compare(&lines, &outbox(&[&one]));
        assert_eq!((compared.foreign_end(), compared.unpublished.len()), (None, 1));
    }

    /// The outbox has the message of the first of two executions of the event, and the file has the messages of both.
    #[test]
    fn message_is_compared_with_every_line() {
        let one = content(1, "1");
        let lines = lines(&[(&one, None), (&content(1, "2"), None)]);
        let compared = compare(&lines, &outbox(&[&one]));
        assert_eq!((compared.differing, compared.unpublished.len()), (1, 1));
    }

    /// The length in the mark is 0. Returns the remaining content, the number of lost messages, and whether the sink
    /// skips message `skipped`.
    fn recovered(
        content: &[u8],
        outbox: &UnpublishedMessages,
        skipped: &SinkContent,
    ) -> RecoveredFile {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let open = |mark: Option<&[u8]>| FileSink::open(&path, mark).expect("opened");
        let (sink, _) = open(None).finish(&UnpublishedMessages::default()).expect("finished");
        let mark = sink.mark();
        drop(sink);
        fs::write(&path, content).expect("written");
        // If the process crashes before the store has the new length, the next start finds the same lines.
        let mut first = None;
        for _ in 0..2 {
            let (mut sink, lost) = open(Some(&mark.value)).finish(outbox).expect("finished");
            let content = fs::read(&path).expect("read");
            let published = PublishedFile::decode(&sink.mark().value).expect("a mark");
            assert_eq!(published.length, content.len() as u64);
            let is_skipped = sink.take_kept("s", skipped, None);
            let found = (content, lost.get("s").copied(), is_skipped);
            assert_eq!(*first.get_or_insert_with(|| found.clone()), found);
        }
        first.expect("two starts")
    }

    type RecoveredFile = (Vec<u8>, Option<u64>, bool);

    #[test]
    fn complete_lines_stay_and_an_incomplete_line_is_removed() {
        let one = content(1, "1");
        let two = content(2, "2");
        let complete = lines(&[(&one, None), (&two, None)]);
        let torn = [&complete, &lines(&[(&content(3, "3"), None)])[..20]].concat();
        for (messages, lost, is_skipped) in [
            (&[&one, &two][..], None, true),
            (&[&one], Some(1), true),
            (&[&two], Some(1), false),
            (&[], Some(2), false),
        ] {
            let expected = (complete.clone(), lost, is_skipped);
            assert_eq!(recovered(&torn, &outbox(messages), &one), expected);
        }
    }

    /// The process dies while it writes the line, after log rotation has renamed the file.
    #[test]
    fn incomplete_line_is_removed_from_a_renamed_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let open = |mark: Option<&[u8]>| FileSink::open(&path, mark).expect("opened");
        let (sink, _) = open(None).finish(&UnpublishedMessages::default()).expect("finished");
        let mark = sink.mark();
        let one = content(1, "1");
        let two = content(2, "2");
        let complete = lines(&[(&one, None)]);
        fs::write(&path, [&complete, &lines(&[(&two, None)])[..20]].concat()).expect("written");
        let renamed = folder.path().join("out.1");
        fs::rename(&path, &renamed).expect("renamed");
        let both = outbox(&[&one, &two]);
        let (mut sink, _) = open(Some(&mark.value)).finish(&both).expect("finished");
        assert_eq!(fs::read(&renamed).expect("read"), complete);
        assert!(sink.take_kept("s", &one, None), "the renamed file has the message");
        assert!(!sink.take_kept("s", &two, None), "the line of the message was incomplete");
    }

    /// A power failure may leave zeros, which are removed like a line of another program, together with the lines after
    /// them. If the outbox lacks the message of one of these later lines, nothing is removed.
    #[test]
    fn foreign_lines_are_removed_if_no_lost_message_follows() {
        let one = content(1, "1");
        let two = content(2, "2");
        let lines_one = lines(&[(&one, None)]);
        for foreign in [&b"no JSON\n"[..], b"{\"id\":\"c\",\"source\":\"/shop\"}\n", &[0; 8]] {
            let all = [&lines_one, foreign, &lines(&[(&two, None)])].concat();
            let both = outbox(&[&one, &two]);
            assert_eq!(recovered(&all, &both, &one), (lines_one.clone(), None, true));
            assert_eq!(recovered(&all, &outbox(&[&two]), &two).0, lines_one);
            if foreign[0] != 0 {
                assert_eq!(recovered(&all, &outbox(&[&one]), &one), (all, Some(1), true));
            }
        }
    }

    #[test]
    fn message_with_another_number_is_skipped() {
        let one = content(1, "1");
        for (in_file, in_store) in [(Some(7), Some(5)), (None, Some(5)), (Some(7), None)] {
            let lines = lines(&[(&one, in_file)]);
            let mut kept = KeptLines::default();
            kept.add(0..1, compare(&lines, &outbox(&[&one])).unpublished);
            assert!(kept.take(Path::new("out"), "s", &one, in_store));
        }
    }

    #[test]
    fn mark_has_kept_lines_until_their_messages_are_skipped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let open = |mark: Option<&[u8]>| FileSink::open(&path, mark).expect("opened");
        let (sink, _) = open(None).finish(&UnpublishedMessages::default()).expect("finished");
        let mut mark = sink.mark();
        drop(sink);
        let one = content(1, "1");
        let two = content(2, "2");
        fs::write(&path, lines(&[(&one, None), (&two, None)])).expect("written");
        let outbox = outbox(&[&one]);
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
