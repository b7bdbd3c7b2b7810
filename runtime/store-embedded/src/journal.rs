//! Prepares the engine's journals before the engine opens them.
//!
//! **Writing anew.** After a failed sync the system takes what it could not write for written: another
//! process reads it from memory, and another sync succeeds, although the disk does not have it. So a journal
//! that was not closed in order is copied, and the copy synced, before anything is answered from it. The
//! journal as it was is kept until the engine is open and has been found to hold all that was answered: the
//! engine cuts off what is behind a damaged place.
//!
//! **Cutting.** A batch that a power failure tore in the middle is cut off the newest journal.
//!
//! The engine drops a torn batch at the end of its journal by itself where it can see that it is
//! cut. If a page within one large value is missing, all it sees is a wrong checksum, and it
//! refuses to open. Such a batch was never synced, so never answered, nor was any after it.
//! Should it be damage of another kind, [`Answered`](super::answered::Answered) notices that
//! answered commits are gone, and the journal as it was is kept beside it. Must never touch a
//! journal in which it finds anything that it does not know.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

/// What the engine's file `version` holds where this module knows its journal.
const VERSION: [u8; 4] = *b"FJL\x03";

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// Replaces each journal in `folder` by a copy that is on the disk, and keeps it as it was in `before`. What an
/// opening that did not succeed has left there stays: it is how the journal was before the first of them.
pub(super) fn write_anew(folder: &Path, before: &Path) -> io::Result<()> {
    fs::create_dir_all(before)?;
    for (_, kept) in journals(before)? {
        // A crash right between the two renames below.
        let journal = folder.join(kept.file_name().unwrap_or_default());
        if !journal.exists() {
            fs::rename(&kept, journal)?;
        }
    }
    for (_, journal) in journals(folder)? {
        let draft = journal.with_extension("anew");
        copy(&journal, &draft)?;
        let kept = before.join(journal.file_name().unwrap_or_default());
        if !kept.exists() {
            fs::rename(&journal, kept)?;
        }
        fs::rename(&draft, &journal)?;
    }
    File::open(before)?.sync_all()?;
    File::open(folder)?.sync_all()
}

/// Copies through memory: the system's own copy may share what the disk has.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            return to.sync_all();
        }
        to.write_all(&piece[..read])?;
    }
}

/// Looks for a batch with a wrong checksum; cuts the journal there. Answers where the journal
/// as it was is kept, if that was so.
pub(super) fn cut_torn_batch(folder: &Path) -> io::Result<Option<PathBuf>> {
    if fs::read(folder.join("version"))? != VERSION {
        return Ok(None);
    }
    let Some(journal) = newest(folder)? else { return Ok(None) };
    let Some(end) = first_torn(&fs::read(&journal)?) else { return Ok(None) };
    let kept = journal.with_extension("damaged");
    fs::copy(&journal, &kept)?;
    let file = OpenOptions::new().write(true).open(&journal)?;
    file.set_len(end as u64)?;
    file.sync_all()?;
    Ok(Some(kept))
}

fn newest(folder: &Path) -> io::Result<Option<PathBuf>> {
    Ok(journals(folder)?.pop().map(|(_, path)| path))
}

/// The journals in a folder, by number.
fn journals(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_suffix(".jnl")?.parse::<u64>().ok());
        journals.extend(number.map(|number| (number, path)));
    }
    journals.sort();
    Ok(journals)
}

/// Where the first batch begins whose parts are all there and whose checksum is wrong.
fn first_torn(journal: &[u8]) -> Option<usize> {
    let mut rest = journal;
    loop {
        let begin = journal.len() - rest.len();
        if !batch(&mut rest)? {
            return Some(begin);
        }
    }
}

/// Passes over a batch; answers whether its checksum is right. `None` where it is no batch.
fn batch(rest: &mut &[u8]) -> Option<bool> {
    let [START, ..] = take::<13>(rest)? else { return None };
    let mut hash = Xxh3Default::new();
    loop {
        let before = *rest;
        match take::<1>(rest)? {
            [ITEM] => {
                // Kind, compression, table.
                take::<10>(rest)?;
                let key = u16::from_le_bytes(take(rest)?);
                let _uncompressed = take::<4>(rest)?;
                let value = u32::from_le_bytes(take(rest)?);
                *rest = rest.get(usize::from(key) + value as usize..)?;
            }
            [CLEAR] => {
                take::<8>(rest)?;
            }
            [END] => {
                let checksum = u64::from_le_bytes(take(rest)?);
                return (take(rest)? == VERSION).then_some(checksum == hash.digest());
            }
            _ => return None,
        }
        hash.update(&before[..before.len() - rest.len()]);
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}
