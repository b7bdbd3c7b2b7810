//! Events from a file of CloudEvents, one a line, or from standard input.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::Duration;

use bytes::Bytes;
use ordain_core::{Cause, DeadLetter, LetterContent, LetterId, digest};
use tokio::sync::{mpsc, oneshot};

use super::lines::{Lines, Next};
use super::{BATCH_BYTES, BATCH_EVENTS, Deliveries, Position, READ_AHEAD, Source};
use crate::cloudevents::{DecodeError, Decoder};

/// How often a file that is followed is looked at for more.
const FOLLOW: Duration = Duration::from_millis(200);

/// What to read, and how.
#[derive(Debug)]
pub struct FileOptions {
    /// The open file; `None` for standard input.
    pub file: Option<File>,
    /// How people know it, for dead letters.
    pub name: String,
    /// Where to start.
    pub position: Position,
    /// Wait for more at the end, instead of ending.
    pub follow: bool,
    /// Takes the lines apart.
    pub decoder: Decoder,
}

/// Starts reading in a thread of its own: reading and decoding block. It ends at the end of the
/// input, or when nobody takes its deliveries any more.
pub fn start(mut options: FileOptions) -> io::Result<Source> {
    let input: Box<dyn Read + Send> = match options.file.take() {
        Some(mut file) => {
            file.seek(SeekFrom::Start(options.position.offset))?;
            options.file = Some(file.try_clone()?);
            Box::new(file)
        }
        None => Box::new(io::stdin()),
    };
    let (deliver, deliveries) = mpsc::channel(READ_AHEAD);
    let (fail, failure) = oneshot::channel();
    std::thread::Builder::new().name("source".into()).spawn(move || {
        if let Err(error) = read(input, &options, &deliver) {
            // Nobody listens when the process is ending: then it does not matter.
            let _ = fail.send(error);
        }
    })?;
    Ok(Source { deliveries, failure })
}

fn read(
    input: Box<dyn Read + Send>,
    options: &FileOptions,
    deliver: &mpsc::Sender<Deliveries>,
) -> io::Result<()> {
    let mut lines = Lines::new(input, options.position, options.decoder.event_size);
    loop {
        let mut batch = Deliveries::default();
        let mut bytes = 0;
        while batch.items.len() < BATCH_EVENTS && bytes < BATCH_BYTES {
            // What is there is delivered before the source waits for more.
            if !batch.items.is_empty() && !lines.has_line() {
                break;
            }
            let (line, whole, position) = match lines.next(!options.follow)? {
                Next::Line(line, position) => (line, line.len() as u64, position),
                Next::TooLong(line, whole, position) => (line, whole, position),
                Next::End => {
                    batch.end = !options.follow;
                    break;
                }
            };
            bytes += line.len();
            if whole == 0 {
                // An empty line is no event, but it may be the last one before the checkpoint.
                if let Some(last) = batch.items.last_mut() {
                    last.1 = position;
                }
                continue;
            }
            let delivered = if whole > line.len() as u64 {
                Err(too_long(whole, options.decoder.event_size))
            } else {
                options.decoder.decode(line)
            };
            let delivered = delivered.map_err(|error| letter(error, options, line, position));
            batch.items.push((delivered, position));
        }
        let (nothing, end) = (batch.items.is_empty(), batch.end);
        if nothing && !end {
            check_not_cut(options, lines.position())?;
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

/// A file that is shorter than what was read of it has other lines now, and nobody knows which of
/// them are new. The next start recognises those that are not.
fn check_not_cut(options: &FileOptions, read: Position) -> io::Result<()> {
    let Some(file) = &options.file else { return Ok(()) };
    let length = file.metadata()?.len();
    if length >= read.offset {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} was cut to {length} bytes while it was read, and {} had been read; start again: it is \
         then read from its beginning, and what was taken before is recognised. Append to a file \
         that is followed, or put another in its place and start again",
        options.name, read.offset
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
