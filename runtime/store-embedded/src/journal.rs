//! Cuts a batch that a power failure tore in the middle off the engine's newest journal.
//!
//! The engine drops a torn batch at the end of its journal by itself where it can see that it is
//! cut. If a page within one large value is missing, all it sees is a wrong checksum, and it
//! refuses to open. Such a batch was never synced, so never answered, nor was any after it.
//! Should it be damage of another kind, [`Answered`](super::answered::Answered) notices that
//! answered commits are gone, and the journal as it was is kept beside it. Must never touch a
//! journal in which it finds anything that it does not know.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

/// What the engine's file `version` holds where this module knows its journal.
const VERSION: [u8; 4] = *b"FJL\x03";

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;

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
    let mut newest = None;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_suffix(".jnl")?.parse::<u64>().ok());
        newest = newest.max(number.map(|number| (number, path)));
    }
    Ok(newest.map(|(_, path)| path))
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
