//! Reads events from files of CloudEvents, one per line, or from standard input.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ordain_core::{Cause, DeadLetter, Event, LetterContent, LetterId, digest};
use tokio::sync::{mpsc, oneshot};

use super::FileSet;
use super::file_set::{CompressedFile, ScanResult, head};
use super::line_splitter::{LineSplitter, NextLine};
use ordain_cloudevents::{
    BATCH_BYTES_LIMIT, BATCH_EVENTS_LIMIT, DeliveryBatch, FilePosition, READ_AHEAD_BATCHES,
    SourceHandle, SourceProgress, is_blank, trim_blanks,
};
use ordain_cloudevents::{DecodeError, EventDecoder};
use ordain_store::checkpoint::{FileProgress, reread_advice};
use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

/// The delay after a pass that found nothing to read in the followed files. Also the interval between two searches of
/// the folder while the reader waits for its receiver. In addition, an incomplete last line of a replaced file must
/// stay unchanged for this time before the reader delivers it.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// An incomplete last line of a replaced file delays the newer files for at most this time. Without the limit, a
/// program that keeps writing to a replaced file could block the newer files.
const UNFINISHED_LIMIT: Duration = Duration::from_secs(5);

/// The settings of a file source.
#[derive(Debug)]
pub struct FileOptions {
    /// The files; `None` for standard input.
    pub files: Option<FileSet>,
    /// The name of the stream. The tags of dead letters are derived from this name.
    pub stream: String,
    /// `true` if the reader waits for more data at the end of the files; `false` if the reader ends there.
    pub follow: bool,
    /// The decoder of the lines of the files.
    pub decoder: EventDecoder,
}

/// Starts a reader on a thread of its own, because reading and decoding block. The reader ends when the receiver of its
/// deliveries is dropped, or when a read fails. After a failed read, `failure` has the error. A reader of standard
/// input, and a reader that does not follow its files, also ends at the end of the input.
pub fn read_file(options: FileOptions) -> io::Result<SourceHandle> {
    let (deliver, deliveries) = mpsc::channel(READ_AHEAD_BATCHES);
    let (fail, failure) = oneshot::channel();
    thread::Builder::new().name("source".into()).spawn(move || {
        let FileOptions { files, stream, follow, decoder } = options;
        let lines = LineDecoder { stream, decoder };
        let ended = match files {
            None => read_standard_input(&lines, &deliver),
            Some(set) => {
                let scanned_at = Instant::now();
                FileReader { set, lines, follow, deliver, open: None, scanned_at }.run()
            }
        };
        if let Err(error) = ended {
            // If the receiver is gone, nothing uses this source any more.
            let _ = fail.send(error);
        }
    })?;
    Ok(SourceHandle { deliveries, failure, acknowledge: None, task: None, is_fed_locally: false })
}

fn read_standard_input(
    lines: &LineDecoder,
    deliver: &mpsc::Sender<DeliveryBatch>,
) -> io::Result<()> {
    let origin = LineOrigin { name: "standard input", file: None };
    let mut splitter = LineSplitter::new(io::stdin(), lines.decoder.event_size);
    loop {
        let (mut batch, is_end) = lines.read_batch(&mut splitter, origin)?;
        batch.end = is_end;
        if is_end {
            batch.items.extend(lines.last_line(&mut splitter, origin, false));
        }
        // If the receiver is gone, nothing uses this source any more.
        if deliver.blocking_send(batch).is_err() || is_end {
            return Ok(());
        }
    }
}

/// A file that can be read only up to `limit`. The reader of the source moves this limit.
struct LimitedFile {
    file: Arc<File>,
    at: u64,
    limit: u64,
}

impl Read for LimitedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.limit.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let length = buffer.len().min(left);
        let read = self.file.read_at(&mut buffer[..length], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

struct OpenFile {
    file: Arc<File>,
    splitter: LineSplitter<LimitedFile>,
    /// The final bytes of the part of the file that was read.
    tail: TailFingerprint,
}

impl OpenFile {
    fn new(file: Arc<File>, position: FilePosition, limit: usize) -> io::Result<Self> {
        let head = TailFingerprint::read(&file, position.offset.min(TAIL_LIMIT_BYTES as u64))?;
        let tail = TailFingerprint::read(&file, position.offset)?;
        let input = LimitedFile { file: Arc::clone(&file), at: position.offset, limit: 0 };
        let splitter = LineSplitter::resume(input, limit, position, &head, &tail);
        Ok(Self { file, splitter, tail })
    }

    /// Returns a description of the change if the file no longer has the beginning or the end of the part that was
    /// read. In this case, a program has truncated or rewritten the file, and a line of the newest read may be a
    /// mixture of old and new bytes.
    fn change(&self) -> io::Result<Option<String>> {
        let read = self.tail.end();
        let length = self.file.metadata()?.len();
        let head = self.splitter.head();
        Ok(if length < read {
            Some(format!("was truncated to {length} bytes after {read} bytes had been read"))
        } else if !TailFingerprint::new(head.len() as u64, head).is_in(&self.file)?
            || !self.tail.is_in(&self.file)?
        {
            Some(format!("was changed within the first {read} bytes after they had been read"))
        } else {
            None
        })
    }
}

/// The result of one visit of the reader to a file.
#[derive(Debug, PartialEq, Eq)]
enum VisitResult {
    /// The source can read no data now.
    Idle,
    /// The reader has delivered a batch, or has reached `TrackedFile::target`.
    Read,
    /// A program may still complete the last line of a replaced file.
    Unfinished,
    /// The file was truncated, changed, renamed or removed, so the reader must scan the folder before it continues.
    Changed,
    Closed,
}

struct FileReader {
    set: FileSet,
    lines: LineDecoder,
    follow: bool,
    deliver: mpsc::Sender<DeliveryBatch>,
    /// The file of the most recent read.
    open: Option<OpenFile>,
    scanned_at: Instant,
}

impl FileReader {
    /// Passes over the files again and again, in reading order. A pass reads each file only up to its length at the
    /// beginning of the pass. The reader therefore also reads the other files while a program keeps appending to one
    /// file.
    fn run(mut self) -> io::Result<()> {
        loop {
            let scan = self.set.scan()?;
            self.scanned_at = Instant::now();
            if scan == ScanResult::Unsettled {
                if self.deliver.is_closed() {
                    return Ok(());
                }
                thread::sleep(FOLLOW_INTERVAL);
                continue;
            }
            self.set.measure()?;
            if self.deliver_losses()? == VisitResult::Closed {
                return Ok(());
            }
            let mut was_idle = true;
            for index in 0..self.set.len() {
                let visit = self.visit(index)?;
                self.set.close_surplus(index);
                was_idle &= !matches!(visit, VisitResult::Read | VisitResult::Changed);
                match visit {
                    VisitResult::Idle | VisitResult::Read => {}
                    VisitResult::Unfinished | VisitResult::Changed => break,
                    VisitResult::Closed => return Ok(()),
                }
            }
            if was_idle && !self.follow {
                return self.end();
            }
            if self.deliver.is_closed() {
                return Ok(());
            }
            // Without a listing, the reader cannot find the earlier lines of a truncated file, so it waits.
            if was_idle || scan == ScanResult::NotListed {
                thread::sleep(FOLLOW_INTERVAL);
            }
        }
    }

    /// Delivers a dead letter for each compressed file whose lines were never read.
    fn deliver_losses(&mut self) -> io::Result<VisitResult> {
        while let Some((file, progress)) = self.set.take_unreported() {
            let loss = file.describe_loss();
            let stream = &self.lines.stream;
            tracing::error!(stream, "unread lines lost: {loss}");
            let letter = compressed_letter(stream, &file, loss);
            let position = progress.current.position();
            let batch = DeliveryBatch {
                items: vec![(Err(letter), position)],
                progress: Some(progress),
                ..Default::default()
            };
            if self.deliver(0, batch)? == VisitResult::Closed {
                return Ok(VisitResult::Closed);
            }
        }
        Ok(VisitResult::Read)
    }

    fn visit(&mut self, index: usize) -> io::Result<VisitResult> {
        let tracked = self.set.file(index);
        if let Some(loss) = tracked.loss.take() {
            let letter = loss_letter(&self.lines.stream, &tracked.progress, loss);
            let position = tracked.progress.position();
            tracked.record_loss();
            if let Some(digest) = tracked.loss_in.take() {
                self.set.record_reported(digest);
            }
            let batch =
                DeliveryBatch { items: vec![(Err(letter), position)], ..Default::default() };
            return self.deliver(index, batch);
        }
        let is_read = tracked.is_read();
        let has_more = tracked.target > tracked.read_to;
        if !is_read {
            return Ok(VisitResult::Idle);
        }
        if tracked.target < tracked.read_to || tracked.is_cut_to(tracked.target) {
            let change = format!("was truncated to {} bytes", tracked.target);
            return self.handle_change(index, &change);
        }
        let read = if has_more { self.read(index)? } else { VisitResult::Idle };
        if !matches!(read, VisitResult::Idle | VisitResult::Read) || !self.set.is_replaced(index) {
            return Ok(read);
        }
        let tracked = self.set.file(index);
        let rest = tracked.read_to;
        if rest == tracked.progress.position().offset {
            tracked.unfinished_since = None;
            return Ok(read);
        }
        if !self.follow {
            // A program may still complete the line. Deliver the line only if it is an event; otherwise leave the line
            // to a later run.
            let is_tried = tracked.has_tried(rest);
            tracked.rest_seen = Some((rest, Instant::now()));
            return if is_tried { Ok(read) } else { self.deliver_last_line(index, true) };
        }
        // A program may still write to the replaced file for a short time.
        let (seen, seen_at) = *tracked.rest_seen.get_or_insert_with(|| (rest, Instant::now()));
        if seen != rest || seen_at.elapsed() < FOLLOW_INTERVAL {
            if seen != rest {
                tracked.rest_seen = None;
            }
            let since = tracked.unfinished_since.get_or_insert_with(Instant::now);
            return Ok(if since.elapsed() < UNFINISHED_LIMIT {
                VisitResult::Unfinished
            } else {
                read
            });
        }
        self.deliver_last_line(index, false)
    }

    /// Delivers the lines up to the target of the file.
    fn read(&mut self, index: usize) -> io::Result<VisitResult> {
        let Some(mut open) = self.open_file(index)? else { return Ok(VisitResult::Changed) };
        let tracked = self.set.file(index);
        open.splitter.input().limit = tracked.target;
        let progress = self.set.source_progress(index);
        loop {
            let file = Arc::clone(&open.file);
            let name = self.set.file(index).name.clone();
            let origin = LineOrigin { name: &name, file: Some(&*file) };
            let (batch, is_end) = self.lines.read_batch(&mut open.splitter, origin)?;
            // If no line of the file was read before, no comparison shows whether a program has truncated the file and
            // has written other lines to it. After such a truncation, the earlier lines are in a copy, which this
            // process must read first. If the first line was known before the newest listing, the check below detects
            // such a truncation.
            let tracked = self.set.file(index);
            let is_unknown = tracked.has_no_read_line() && !tracked.is_identified();
            if is_unknown && self.set.has_unknown_older_file()? {
                self.set.file(index).compare_again();
                return Ok(VisitResult::Changed);
            }
            // The file may have been truncated between the scan and the first read. This check therefore follows the
            // first read. If this check finds no truncation, the batch is from the content that the scan found.
            if self.set.file(index).is_cut_in(&file)? {
                return self.handle_change(index, "was truncated before it was read");
            }
            // This check also shows that no program truncated the file during the check for older files.
            if let Some(change) = open.change()? {
                return self.handle_change(index, &change);
            }
            open.tail = open.splitter.tail();
            self.record(index, &open, batch.items.is_empty());
            if !batch.items.is_empty() {
                let progress = Some(self.progress(&progress, index));
                let visit = self.deliver(index, DeliveryBatch { progress, ..batch })?;
                if visit == VisitResult::Closed {
                    return Ok(visit);
                }
            }
            if is_end {
                self.open = Some(open);
                return Ok(VisitResult::Read);
            }
        }
    }

    /// Opens the file at the position that the source has reached. Returns `None` if [`FileSet::open`] returns `None`,
    /// or if the file no longer begins with the bytes that were read.
    fn open_file(&mut self, index: usize) -> io::Result<Option<OpenFile>> {
        let Some(file) = self.set.open(index)? else { return Ok(None) };
        let is_fixed = self.set.is_fixed();
        let tracked = self.set.file(index);
        match self.open.take() {
            Some(open)
                if Arc::ptr_eq(&open.file, &file)
                    && open.splitter.position() == tracked.progress.position() =>
            {
                Ok(Some(open))
            }
            _ => {
                // A program may have truncated or replaced the content after the newest scan. From now on, the reader
                // compares the file only with the bytes that it finds now.
                if !is_fixed && !tracked.progress.print.matches(&file)? {
                    tracked.compare_again();
                    return Ok(None);
                }
                let limit = self.lines.decoder.event_size;
                match OpenFile::new(file, tracked.progress.position(), limit) {
                    // The file was truncated after it was compared with its fingerprint.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
                    opened => opened.map(Some),
                }
            }
        }
    }

    /// Records the position up to which the source has read a file. `is_blank` is `true` if the newest read found only
    /// blank lines.
    fn record(&mut self, index: usize, open: &OpenFile, is_blank: bool) {
        let tracked = self.set.file(index);
        let has_only_blanks = is_blank && tracked.has_no_read_line();
        let progress = tracked.progress.clone();
        tracked.progress = progress.at(open.splitter.position(), open.splitter.fingerprint());
        tracked.progress.has_only_blanks = has_only_blanks;
        tracked.read_to = open.tail.end();
    }

    /// Returns the progress of the source after a read of a file. `before` is the progress of the source at the
    /// beginning of the visit.
    fn progress(&mut self, before: &SourceProgress, index: usize) -> SourceProgress {
        let current = self.set.file(index).progress.clone();
        SourceProgress { current, index, ..before.clone() }
    }

    /// Handles a change of data that was already read. If the set scans the folder, the next scan compares the file
    /// with its fingerprint. If the two differ, the scan searches for a copy of the earlier data. A set of one fixed
    /// file does not scan the folder, so the change is an error.
    fn handle_change(&mut self, index: usize, change: &str) -> io::Result<VisitResult> {
        let ordering = self.lines.decoder.ordering;
        let is_fixed = self.set.is_fixed();
        let tracked = self.set.file(index);
        tracked.compare_again();
        if !is_fixed {
            return Ok(VisitResult::Changed);
        }
        Err(io::Error::other(format!(
            "{} {change}. Start Ordain again: if the part of the file that was read has changed, Ordain reads the file \
             from its beginning, and {}. Only append to a file of events, or replace the file with another file",
            tracked.name,
            reread_advice(ordering)
        )))
    }

    /// Delivers the last line of a file although this line has no line end. With `may_be_unfinished`, another process
    /// may still be writing the line, so the method delivers the line only if the line is an event.
    fn deliver_last_line(
        &mut self,
        index: usize,
        may_be_unfinished: bool,
    ) -> io::Result<VisitResult> {
        let Some(mut open) = self.open_file(index)? else { return Ok(VisitResult::Changed) };
        let tracked = self.set.file(index);
        open.splitter.input().limit = tracked.target.max(tracked.read_to);
        let name = tracked.name.clone();
        let file = Arc::clone(&open.file);
        let origin = LineOrigin { name: &name, file: Some(&*file) };
        let before = self.set.source_progress(index);
        let (mut batch, _) = self.lines.read_batch(&mut open.splitter, origin)?;
        batch.items.extend(self.lines.last_line(&mut open.splitter, origin, may_be_unfinished));
        if batch.items.is_empty() && may_be_unfinished {
            return Ok(VisitResult::Idle);
        }
        open.tail = open.splitter.tail();
        self.record(index, &open, batch.items.is_empty());
        if batch.items.is_empty() {
            // The last line is blank, and counts as read.
            return Ok(VisitResult::Idle);
        }
        batch.progress = Some(self.progress(&before, index));
        self.deliver(index, batch)
    }

    /// Delivers the last line of each file if this line has no line end. If a program may still complete the line,
    /// delivers the line only if it is an event. Assumes that no program completes the last line of a fixed file that
    /// log rotation has renamed.
    fn end(&mut self) -> io::Result<()> {
        let is_fixed = self.set.is_fixed();
        for index in 0..self.set.len() {
            let tracked = self.set.file(index);
            let has_rest = tracked.read_to > tracked.progress.position().offset;
            let may_be_unfinished = !is_fixed || tracked.progress.is_live;
            if tracked.is_read() && has_rest && !tracked.has_tried(tracked.read_to) {
                self.deliver_last_line(index, may_be_unfinished)?;
            }
        }
        // If the receiver is gone, nothing uses this source any more.
        let _ = self.deliver.blocking_send(DeliveryBatch { end: true, ..Default::default() });
        Ok(())
    }

    /// Delivers a batch. While the channel of the receiver is full, searches the folder for new files and opens them,
    /// because log rotation may remove them before the channel has room.
    fn deliver(&mut self, index: usize, mut batch: DeliveryBatch) -> io::Result<VisitResult> {
        if batch.progress.is_none() {
            batch.progress = Some(self.set.source_progress(index));
        }
        let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut room = pin!(self.deliver.reserve());
        loop {
            if self.scanned_at.elapsed() >= FOLLOW_INTERVAL {
                self.set.discover()?;
                self.scanned_at = Instant::now();
            }
            match room.as_mut().poll(&mut context) {
                Poll::Ready(Ok(permit)) => {
                    permit.send(batch);
                    return Ok(VisitResult::Read);
                }
                // Nothing uses this source any more.
                Poll::Ready(Err(_)) => return Ok(VisitResult::Closed),
                Poll::Pending => thread::park_timeout(FOLLOW_INTERVAL),
            }
        }
    }
}

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The file from which a line was read, for the dead letter of a line that is not an event.
#[derive(Clone, Copy)]
struct LineOrigin<'a> {
    name: &'a str,
    /// `None` for standard input.
    file: Option<&'a File>,
}

/// The decoder of the lines of a stream's source, and the name of the stream for dead letters.
struct LineDecoder {
    stream: String,
    decoder: EventDecoder,
}

impl LineDecoder {
    /// Returns `true` with the batch if a read has shown that no more lines are available.
    fn read_batch<R: Read>(
        &self,
        lines: &mut LineSplitter<R>,
        origin: LineOrigin<'_>,
    ) -> io::Result<(DeliveryBatch, bool)> {
        let mut batch = DeliveryBatch::default();
        let mut bytes = 0;
        let mut is_end = false;
        while batch.items.len() < BATCH_EVENTS_LIMIT && bytes < BATCH_BYTES_LIMIT {
            // Deliver the available lines before waiting for more.
            if !batch.items.is_empty() && !lines.has_line() {
                break;
            }
            let (line, length, position) = match lines.next()? {
                NextLine::Line(line, position) => (line, line.len() as u64, position),
                NextLine::TooLong(line, length, position) => (line, length, position),
                NextLine::End => {
                    is_end = true;
                    break;
                }
            };
            bytes += line.len();
            if length > line.len() as u64 || !is_blank(line) {
                let delivered = self.decode(line, length);
                let delivered =
                    delivered.map_err(|error| self.letter(error, origin, line, position));
                batch.items.push((delivered, position));
            }
        }
        if let Some(last) = batch.items.last_mut() {
            // A blank line is not an event. The position of the newest event moves to the end of the blanks that follow
            // this event, so that a checkpoint can include the blanks. Without this step, the blanks would count as
            // unread.
            lines.skip_blanks();
            last.1 = lines.position();
        }
        Ok((batch, is_end))
    }

    /// Returns the event or the dead letter of a last line that has no line end and is not blank. With
    /// `may_be_unfinished`, another process may still be writing the line. If the line is then not an event, logs a
    /// warning and returns `None`, so that the next run reads the line.
    fn last_line<R: Read>(
        &self,
        lines: &mut LineSplitter<R>,
        origin: LineOrigin<'_>,
        may_be_unfinished: bool,
    ) -> Option<(Result<Event, Box<DeadLetter>>, FilePosition)> {
        let (line, length, position) = match lines.last_line() {
            NextLine::Line(line, position) => (line, line.len() as u64, position),
            NextLine::TooLong(line, length, position) => (line, length, position),
            NextLine::End => return None,
        };
        if length == line.len() as u64 && is_blank(line) {
            return None;
        }
        let delivered = match self.decode(line, length) {
            Err(_) if may_be_unfinished => {
                tracing::warn!(
                    file = origin.name,
                    line = position.line,
                    bytes = length,
                    "last line ignored: it has no line end and is not an event, so it may be incomplete; the next \
                     run reads it again; add a line end if it is complete"
                );
                return None;
            }
            delivered => delivered.map_err(|error| self.letter(error, origin, line, position)),
        };
        Some((delivered, position))
    }

    fn decode(&self, line: &[u8], length: u64) -> Result<Event, DecodeError> {
        if length > line.len() as u64 {
            return Err(too_long(length, self.decoder.event_size));
        }
        self.decoder.decode(line)
    }

    /// Creates the dead letter of a line that is not an event. The tag of the letter depends on the stream, on the
    /// first non-blank line of the file, and on the number and the text of this line. A repeated read after a crash
    /// therefore produces the same letter, even if log rotation has given the file another name. Two lines with the
    /// same text produce two letters.
    fn letter(
        &self,
        error: DecodeError,
        origin: LineOrigin<'_>,
        line: &[u8],
        position: FilePosition,
    ) -> Box<DeadLetter> {
        let place = format!("{}\0{}", self.stream, position.line);
        let file = origin.file.map_or(0, first_line_digest);
        let tag = (digest(place.as_bytes()) ^ digest(line) ^ file) | 1;
        Box::new(DeadLetter {
            id: LetterId {
                key: error.key.unwrap_or_default().into(),
                sequence: error.sequence.unwrap_or(0),
                tag,
            },
            cause: error.cause,
            error: error.message,
            origin: Some(format!("line {} of {}", position.line, origin.name)),
            version: None,
            content: LetterContent::Raw(Bytes::copy_from_slice(line)),
        })
    }
}

/// Returns a digest of the first non-blank line of a file, without the blanks around the line. Searches only the first
/// [`TAIL_LIMIT_BYTES`] bytes of the file.
fn first_line_digest(file: &File) -> u64 {
    let head = head(file).unwrap_or_default();
    let mut lines = head.split(|byte| *byte == b'\n').map(trim_blanks);
    let line = lines.find(|line| !line.is_empty()).unwrap_or_default();
    // The tag of a letter combines this digest with the digest of the letter's line by XOR. Because of the prefix, the
    // two digests differ even if the letter is about the first line. Two equal digests would cancel each other.
    digest(&[b"first line\0", line].concat())
}

/// Creates the dead letter about the lost unread rest of a file. A program may truncate a file several times, and the
/// file then loses several rests at the same position. The tag of the letter therefore also depends on the length of
/// the file and on the bytes that were read, or on its first bytes if nothing was read.
fn loss_letter(stream: &str, progress: &FileProgress, error: String) -> Box<DeadLetter> {
    let FileProgress { device, inode, created_ns, length, .. } = progress;
    let offset = progress.position().offset;
    let print = if progress.is_begun() { &progress.print } else { &progress.first_bytes };
    let read = print.digest();
    let place =
        format!("{stream}\0lost\0{device}\0{inode}\0{created_ns}\0{offset}\0{length}\0{read}");
    Box::new(DeadLetter {
        id: LetterId { key: "".into(), sequence: 0, tag: digest(place.as_bytes()) | 1 },
        cause: Cause::Unreadable,
        error,
        origin: Some(format!("byte {offset} of {}, inode {inode}", progress.path)),
        version: None,
        content: LetterContent::Nothing,
    })
}

/// Creates the dead letter about a compressed file whose lines the source has never read. The tag of the letter depends
/// on the content of the file and not on its name, because log rotation gives new names to the file.
fn compressed_letter(stream: &str, file: &CompressedFile, error: String) -> Box<DeadLetter> {
    let FileProgress { path, inode, .. } = &file.progress;
    let place = format!("{stream}\0compressed\0{}", file.digest);
    Box::new(DeadLetter {
        id: LetterId { key: "".into(), sequence: 0, tag: digest(place.as_bytes()) | 1 },
        cause: Cause::Unreadable,
        error,
        origin: Some(format!("{path}, inode {inode}")),
        version: None,
        content: LetterContent::Nothing,
    })
}

fn too_long(whole: u64, limit: usize) -> DecodeError {
    DecodeError {
        cause: Cause::Unreadable,
        message: format!(
            "the line has {whole} bytes, more than {limit} (runtime.event_size): \
             a dead letter contains only the beginning of such a line"
        ),
        key: None,
        sequence: None,
    }
}

#[cfg(test)]
mod tests;
