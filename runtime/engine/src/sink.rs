//! Where messages go. A sink appends what it is given, in that order; which messages those are,
//! and when they are done, is the publisher's affair.

mod chain;
mod content;
mod done;
mod error;
mod file;
mod outlets;
mod publisher;
mod runs;

use std::io;

pub(crate) use chain::ChainSink;
pub(crate) use done::Done;
pub(crate) use error::PublisherError;
pub(crate) use file::FileSink;
pub(crate) use outlets::Outlets;
pub(crate) use publisher::{Committed, LeftOver, Publisher, Question, Target};

use ordain_store::Mark;

/// A sink that takes bytes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A file, whose content is exact: its length is kept with the outbox.
    File(FileSink),
    /// Standard output: at least once.
    Standard,
}

impl Sink {
    /// Writes encoded messages behind all earlier ones. Nothing of a failed write counts.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        use io::Write;
        match self {
            Self::File(file) => file.append(bytes),
            Self::Standard => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()
            }
        }
    }

    /// Where it writes, for people.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::File(file) => file.path().display().to_string(),
            Self::Standard => "standard output".to_owned(),
        }
    }

    /// Whether anything appended may not be durable.
    pub(crate) fn needs_sync(&self) -> bool {
        match self {
            Self::File(file) => file.needs_sync(),
            Self::Standard => false,
        }
    }

    /// Makes everything appended durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.sync(),
            Self::Standard => Ok(()),
        }
    }

    /// What is to be kept with the outbox at this point.
    pub(crate) fn mark(&self) -> Option<Mark> {
        match self {
            Self::File(file) => Some(file.mark()),
            Self::Standard => None,
        }
    }
}
