//! Reads events from a file of CloudEvents, one per line, or from standard input.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use ordain_core::{Cause, DeadLetter, Event, LetterContent, LetterId, digest};
use tokio::sync::{mpsc, oneshot};

use super::line_splitter::{LineSplitter, NextLine};
use ordain_cloudevents::{
    BATCH_BYTES_LIMIT, BATCH_EVENTS_LIMIT, DeliveryBatch, FilePosition, READ_AHEAD_BATCHES,
    SourceHandle, is_blank,
};
use ordain_cloudevents::{DecodeError, EventDecoder};
use ordain_store::checkpoint::reread_advice;
use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

/// Interval at which the reader checks a followed file for more data.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// The settings of a file source.
#[derive(Debug)]
pub struct FileOptions {
    /// The open file and its path; `None` for standard input.
    pub file: Option<(File, PathBuf)>,
    /// The source's name in dead letters.
    pub name: String,
    /// The position at which to start.
    pub position: FilePosition,
    /// `true` to wait for more data at the end of the file, instead of ending.
    pub follow: bool,
    /// The decoder of lines.
    pub decoder: EventDecoder,
}

impl FileOptions {
    /// Returns whether another file now has the path of the followed file. After a rename, the reader follows the
    /// renamed file until another file has the old path.
    fn is_replaced(&self) -> io::Result<bool> {
        let Some((file, path)) = &self.file else { return Ok(false) };
        let Ok(metadata_at_path) = std::fs::metadata(path) else { return Ok(false) };
        let open_metadata = file.metadata()?;
        Ok((metadata_at_path.dev(), metadata_at_path.ino())
            != (open_metadata.dev(), open_metadata.ino()))
    }
}

/// Starts a reader on a thread of its own, because reading and decoding block. The reader ends when the receiver of its
/// deliveries is dropped. A reader that does not follow the file also ends at the end of the input.
pub fn read_file(options: FileOptions) -> io::Result<SourceHandle> {
    let (deliver, deliveries) = mpsc::channel(READ_AHEAD_BATCHES);
    let (fail, failure) = oneshot::channel();
    std::thread::Builder::new().name("source".into()).spawn(move || {
        if let Err(error) =
            open(&options).and_then(|lines| deliver_lines(lines, &options, &deliver))
        {
            // The receiver is gone when the process is ending; the error does not matter then.
            let _ = fail.send(error);
        }
    })?;
    Ok(SourceHandle { deliveries, failure, acknowledge: None, task: None, is_fed_locally: false })
}

type SourceSplitter = LineSplitter<Box<dyn Read + Send>>;

fn open(options: &FileOptions) -> io::Result<SourceSplitter> {
    let limit = options.decoder.event_size;
    let Some((file, _)) = &options.file else {
        return Ok(LineSplitter::new(Box::new(io::stdin()), limit));
    };
    let position = options.position;
    let head = TailFingerprint::read(file, position.offset.min(TAIL_LIMIT_BYTES as u64))?;
    let tail = TailFingerprint::read(file, position.offset)?;
    let mut input = file.try_clone()?;
    input.seek(SeekFrom::Start(position.offset))?;
    Ok(LineSplitter::resume(Box::new(input), limit, position, &head, &tail))
}

fn deliver_lines(
    mut lines: SourceSplitter,
    options: &FileOptions,
    deliver: &mpsc::Sender<DeliveryBatch>,
) -> io::Result<()> {
    let mut tail = lines.tail();
    let mut was_replaced = false;
    loop {
        let batch = read_batch(&mut lines, options)?;
        // The data that was read earlier must still be unchanged. If the data has changed, the file was truncated or
        // rewritten. The new data may then consist of parts of other lines, or follow lines that were never read.
        if let Some((file, _)) = &options.file {
            check_unchanged(file, lines.head(), &tail, options)?;
        }
        tail = lines.tail();
        let nothing = batch.items.is_empty();
        let end = batch.end;
        if nothing && !end {
            // Another program may still write to the replaced file for a short time, so the reader reads that file once
            // more before it ends.
            let before = std::mem::replace(&mut was_replaced, options.is_replaced()?);
            if before && was_replaced {
                return Err(finish_replaced_file(&mut lines, options, deliver));
            }
            std::thread::sleep(FOLLOW_INTERVAL);
        } else {
            // The receiver is gone when the process is ending; the batch does not matter then.
            let _ = deliver.blocking_send(batch);
        }
        if end || deliver.is_closed() {
            return Ok(());
        }
    }
}

/// Collects a batch of the lines that are available.
fn read_batch(lines: &mut SourceSplitter, options: &FileOptions) -> io::Result<DeliveryBatch> {
    let mut batch = DeliveryBatch::default();
    let mut bytes = 0;
    while batch.items.len() < BATCH_EVENTS_LIMIT && bytes < BATCH_BYTES_LIMIT {
        // Deliver the available lines before waiting for more.
        if !batch.items.is_empty() && !lines.has_line() {
            break;
        }
        let (line, length, position) = match lines.next()? {
            NextLine::Line(line, position) => (line, line.len() as u64, position),
            NextLine::TooLong(line, length, position) => (line, length, position),
            NextLine::End => {
                batch.end = !options.follow;
                break;
            }
        };
        bytes += line.len();
        if length > line.len() as u64 || !is_blank(line) {
            let delivered = decode(line, length, options);
            let delivered = delivered.map_err(|error| letter(error, options, line, position));
            batch.items.push((delivered, position));
        }
    }
    if let Some(last) = batch.items.last_mut() {
        // A blank line is not an event. The end of the blanks after the last event becomes the position of this event,
        // so that a checkpoint can include the blanks.
        last.1 = lines.position();
    }
    batch.fingerprint = options.file.as_ref().map(|_| lines.fingerprint());
    if batch.end {
        take_last_line(lines, options, &mut batch, options.file.is_some());
    }
    Ok(batch)
}

/// Takes the last line if it has no line end. With `may_be_unfinished`, another process may still be writing the line.
/// The function then takes the line only if the line is an event. A line that is not an event stays for the next run.
fn take_last_line(
    lines: &mut SourceSplitter,
    options: &FileOptions,
    batch: &mut DeliveryBatch,
    may_be_unfinished: bool,
) {
    let (line, length, position) = match lines.last_line() {
        NextLine::Line(line, position) => (line, line.len() as u64, position),
        NextLine::TooLong(line, length, position) => (line, length, position),
        NextLine::End => return,
    };
    if length == line.len() as u64 && is_blank(line) {
        return;
    }
    let delivered = match decode(line, length, options) {
        Err(_) if may_be_unfinished => {
            tracing::warn!(
                file = options.name,
                line = position.line,
                bytes = length,
                "last line ignored: it has no line end and is not an event, so it may be incomplete; the next \
                 run reads it again; add a line end if it is complete"
            );
            return;
        }
        delivered => delivered.map_err(|error| letter(error, options, line, position)),
    };
    batch.items.push((delivered, position));
    batch.fingerprint = options.file.as_ref().map(|_| lines.fingerprint());
}

fn decode(line: &[u8], length: u64, options: &FileOptions) -> Result<Event, DecodeError> {
    if length > line.len() as u64 {
        return Err(too_long(length, options.decoder.event_size));
    }
    options.decoder.decode(line)
}

/// Delivers the last line of a file that was replaced. No program will complete this line any more.
fn finish_replaced_file(
    lines: &mut SourceSplitter,
    options: &FileOptions,
    deliver: &mpsc::Sender<DeliveryBatch>,
) -> io::Error {
    let mut last = DeliveryBatch::default();
    take_last_line(lines, options, &mut last, false);
    // The receiver is gone when the process is ending; the batch does not matter then.
    let _ = deliver.blocking_send(last);
    io::Error::other(format!(
        "{} has been replaced by another file. The replaced file was read to its end. \
         Start again to read the new file",
        options.name
    ))
}

/// Checks that the data that was already read is unchanged. If the data has changed, the file has other lines now, and
/// the reader cannot know which of these lines are new.
fn check_unchanged(
    file: &File,
    head: &[u8],
    tail: &TailFingerprint,
    options: &FileOptions,
) -> io::Result<()> {
    let name = &options.name;
    let read = tail.end();
    let length = file.metadata()?.len();
    let what = if length < read {
        format!("was truncated to {length} bytes after {read} bytes had been read")
    } else if !TailFingerprint::new(head.len() as u64, head).is_in(file)? || !tail.is_in(file)? {
        format!("was changed within the first {read} bytes after they had been read")
    } else {
        return Ok(());
    };
    Err(io::Error::other(format!(
        "{name} {what}. Start again: if the part that was read has changed, the file is read from its \
         beginning, and {}. Only append to a followed file, or replace it with another file",
        reread_advice(options.decoder.ordering)
    )))
}

fn too_long(whole: u64, limit: usize) -> DecodeError {
    DecodeError {
        cause: Cause::Unreadable,
        message: format!(
            "the line has {whole} bytes, more than {limit} (runtime.event_size): \
             the dead letter contains only the beginning of the line"
        ),
        key: None,
        sequence: None,
    }
}

/// Returns the dead letter of a line that is not an event. The tag of the letter depends on the position in the file
/// and on the text of the line, but not on the path of the file. A line that is read again after a crash, or under
/// another path, produces the same letter. Two lines with the same text produce two letters.
fn letter(
    error: DecodeError,
    options: &FileOptions,
    line: &[u8],
    position: FilePosition,
) -> Box<DeadLetter> {
    let tag = (digest(&position.line.to_le_bytes()) ^ digest(line)) | 1;
    Box::new(DeadLetter {
        id: LetterId {
            key: error.key.unwrap_or_default().into(),
            sequence: error.sequence.unwrap_or(0),
            tag,
        },
        cause: error.cause,
        error: error.message,
        origin: Some(format!("line {} of {}", position.line, options.name)),
        version: None,
        content: LetterContent::Raw(Bytes::copy_from_slice(line)),
    })
}
