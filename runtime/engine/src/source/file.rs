//! Events from a file of CloudEvents, one a line, or from standard input.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use ordain_core::{Cause, DeadLetter, Event, LetterContent, LetterId, digest};
use tokio::sync::{mpsc, oneshot};

use super::lines::{Lines, Next};
use ordain_cloudevents::{BATCH_BYTES, BATCH_EVENTS, Deliveries, Position, READ_AHEAD, Source};
use ordain_cloudevents::{DecodeError, Decoder};
use ordain_store::checkpoint::read_again;
use ordain_util::probe::{PROBE, Probe};

/// How often a file that is followed is looked at for more.
const FOLLOW: Duration = Duration::from_millis(200);

/// What to read, and how.
#[derive(Debug)]
pub struct FileOptions {
    /// The open file and where it was found; `None` for standard input.
    pub file: Option<(File, PathBuf)>,
    /// How people know it, for dead letters.
    pub name: String,
    /// Where to start.
    pub position: Position,
    /// Wait for more at the end, instead of ending.
    pub follow: bool,
    /// Takes the lines apart.
    pub decoder: Decoder,
}

impl FileOptions {
    /// Whether another file is where the followed one was found. One that is renamed away is
    /// followed until there is.
    fn is_replaced(&self) -> io::Result<bool> {
        let Some((file, path)) = &self.file else { return Ok(false) };
        let Ok(there) = std::fs::metadata(path) else { return Ok(false) };
        let here = file.metadata()?;
        Ok((there.dev(), there.ino()) != (here.dev(), here.ino()))
    }
}

/// Starts reading in a thread of its own: reading and decoding block. It ends at the end of the
/// input, or when nobody takes its deliveries any more.
pub fn start(options: FileOptions) -> io::Result<Source> {
    let (deliver, deliveries) = mpsc::channel(READ_AHEAD);
    let (fail, failure) = oneshot::channel();
    std::thread::Builder::new().name("source".into()).spawn(move || {
        if let Err(error) = open(&options).and_then(|lines| read(lines, &options, &deliver)) {
            // Nobody listens when the process is ending: then it does not matter.
            let _ = fail.send(error);
        }
    })?;
    Ok(Source { deliveries, failure, acknowledge: None, ended: None, is_fed_from_here: false })
}

type Input = Lines<Box<dyn Read + Send>>;

fn open(options: &FileOptions) -> io::Result<Input> {
    let limit = options.decoder.event_size;
    let Some((file, _)) = &options.file else {
        return Ok(Lines::new(Box::new(io::stdin()), limit));
    };
    let position = options.position;
    let head = Probe::read(file, position.offset.min(PROBE as u64))?;
    let tail = Probe::read(file, position.offset)?;
    let mut input = file.try_clone()?;
    input.seek(SeekFrom::Start(position.offset))?;
    Ok(Lines::resume(Box::new(input), limit, position, &head, &tail))
}

fn read(
    mut lines: Input,
    options: &FileOptions,
    deliver: &mpsc::Sender<Deliveries>,
) -> io::Result<()> {
    let mut seen = lines.tail();
    let mut replaced = false;
    loop {
        let batch = gather(&mut lines, options)?;
        // What was read before must still be there. Else the file was cut or written anew, and
        // what was read now are the halves of other lines, or comes after lines never read.
        if let Some((file, _)) = &options.file {
            check_unchanged(file, lines.head(), &seen, options)?;
        }
        seen = lines.tail();
        let (nothing, end) = (batch.items.is_empty(), batch.end);
        if nothing && !end {
            // Whoever writes may have the old file open a moment longer: it is read once more.
            let before = std::mem::replace(&mut replaced, options.is_replaced()?);
            if before && replaced {
                return Err(end_of_replaced(&mut lines, options, deliver));
            }
            std::thread::sleep(FOLLOW);
        } else {
            // Nobody takes it when the process is ending: then it does not matter.
            let _ = deliver.blocking_send(batch);
        }
        if end || deliver.is_closed() {
            return Ok(());
        }
    }
}

/// Takes the lines that are there, up to a batch of them.
fn gather(lines: &mut Input, options: &FileOptions) -> io::Result<Deliveries> {
    let mut batch = Deliveries::default();
    let mut bytes = 0;
    while batch.items.len() < BATCH_EVENTS && bytes < BATCH_BYTES {
        // What is there is delivered before the source waits for more.
        if !batch.items.is_empty() && !lines.has_line() {
            break;
        }
        let (line, whole, position) = match lines.next()? {
            Next::Line(line, position) => (line, line.len() as u64, position),
            Next::TooLong(line, whole, position) => (line, whole, position),
            Next::End => {
                batch.end = !options.follow;
                break;
            }
        };
        bytes += line.len();
        if whole > 0 {
            let delivered = decode(line, whole, options);
            let delivered = delivered.map_err(|error| letter(error, options, line, position));
            batch.items.push((delivered, position));
        } else if let Some(last) = batch.items.last_mut() {
            // An empty line is no event, but it may be the last one before the checkpoint.
            last.1 = position;
        }
    }
    batch.print = options.file.as_ref().map(|_| lines.print());
    if batch.end {
        take_rest(lines, options, &mut batch, options.file.is_some());
    }
    Ok(batch)
}

/// Takes a last line that has not ended. If somebody may be writing it, it is taken only if it is
/// an event, and else left for the next run.
fn take_rest(lines: &mut Input, options: &FileOptions, batch: &mut Deliveries, unfinished: bool) {
    let (line, whole, position) = match lines.rest() {
        Next::Line(line, position) => (line, line.len() as u64, position),
        Next::TooLong(line, whole, position) => (line, whole, position),
        Next::End => return,
    };
    if whole == 0 {
        return;
    }
    let delivered = match decode(line, whole, options) {
        Err(_) if unfinished => {
            tracing::warn!(
                file = options.name,
                line = position.line,
                bytes = whole,
                "the last line has no end and is no event: it is left for the next run, as it may \
                 be half written; end it if it is whole"
            );
            return;
        }
        delivered => delivered.map_err(|error| letter(error, options, line, position)),
    };
    batch.items.push((delivered, position));
    batch.print = options.file.as_ref().map(|_| lines.print());
}

fn decode(line: &[u8], whole: u64, options: &FileOptions) -> Result<Event, DecodeError> {
    if whole > line.len() as u64 {
        return Err(too_long(whole, options.decoder.event_size));
    }
    options.decoder.decode(line)
}

/// Delivers what a file that was replaced ends with: nobody will end its last line any more.
fn end_of_replaced(
    lines: &mut Input,
    options: &FileOptions,
    deliver: &mpsc::Sender<Deliveries>,
) -> io::Error {
    let mut last = Deliveries::default();
    take_rest(lines, options, &mut last, false);
    // Nobody takes it when the process is ending: then it does not matter.
    let _ = deliver.blocking_send(last);
    io::Error::other(format!(
        "{} is another file by now, and the one that was followed has been read to its end. \
         Start again to read the new one",
        options.name
    ))
}

/// A file of which something else stands where it was read has other lines now, and nobody knows
/// which of them are new.
fn check_unchanged(
    file: &File,
    head: &[u8],
    seen: &Probe,
    options: &FileOptions,
) -> io::Result<()> {
    let (name, read) = (&options.name, seen.end());
    let length = file.metadata()?.len();
    let what = if length < read {
        format!("was cut to {length} bytes while it was read, and {read} had been read")
    } else if !Probe::new(head.len() as u64, head).is_in(file)? || !seen.is_in(file)? {
        format!("was changed within the first {read} bytes after they had been read")
    } else {
        return Ok(());
    };
    Err(io::Error::other(format!(
        "{name} {what}. Start again: if what is done has changed, the file is read from its \
         beginning, and {}. Only append to a file that is followed, or put another in its place",
        read_again(options.decoder.ordering)
    )))
}

fn too_long(whole: u64, limit: usize) -> DecodeError {
    DecodeError {
        cause: Cause::Unreadable,
        message: format!(
            "the line has {whole} bytes, more than {limit} (runtime.event_size): \
             only its beginning is kept here"
        ),
        key: None,
        sequence: None,
    }
}

/// The letter of a line that is no event. Its tag comes from the place in the file, so that a
/// line read again after a crash makes the same letter, and the same text twice makes two.
fn letter(
    error: DecodeError,
    options: &FileOptions,
    line: &[u8],
    position: Position,
) -> Box<DeadLetter> {
    let place = format!("{}\0{}", options.name, position.line);
    let tag = (digest(place.as_bytes()) ^ digest(line)) | 1;
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
