//! Prepares the engine's journals before the engine opens them.
//!
//! **Copying.** After a failed sync, the operating system treats unwritten data as written. A later process then reads
//! the data from the page cache, and its sync succeeds, although the disk lacks the data. If the store was not closed
//! cleanly, this module therefore copies each journal and syncs the copy, before the store answers any request. The
//! engine truncates a journal at a damaged place. The store therefore keeps the original journals until the engine is
//! open and its database contains all answered commits.
//!
//! **Checking.** The engine reports no error if a journal is damaged in the middle, and drops the batches after the
//! damaged place. The engine also reports no error if a journal is missing, or if a journal other than the newest is
//! empty. This module therefore refuses such journals before the engine opens them. After a crash, this module cannot
//! detect that the oldest journals are missing. The engine itself removes old journals that it no longer needs, and
//! only a clean shutdown records which journal is the oldest.
//!
//! **Truncating.** A power failure can leave a torn (incomplete) batch at the end of the newest journal. This module
//! removes the batch if the engine cannot remove it.
//!
//! The engine itself drops a torn batch if the batch has no end. But if only a page in the middle of a large value is
//! missing, the engine finds a wrong checksum, and refuses to open. This module then truncates the journal before the
//! batch with the wrong checksum. If the batch is torn, nothing is lost: it was never synced, so the store answered
//! neither this batch nor a later batch. If the wrong checksum has another cause, answered requests may be lost:
//! [`AnsweredCommits`](super::answered_commits::AnsweredCommits) then detects the loss, and the folder still contains a
//! copy of the original journal. This module must never change a journal of an unknown format.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

/// The content of the engine's file `version` for the known journal format. A batch ends with the same bytes.
const JOURNAL_MAGIC: [u8; 4] = *b"FJL\x03";

const START_TAG: u8 = 1;
const ITEM_TAG: u8 = 2;
const END_TAG: u8 = 3;
const CLEAR_TAG: u8 = 4;

const COPY_CHUNK_BYTES: usize = 1 << 20;

/// Repairs the folder after a crash between the two renames of [`rewrite_journals`]: if `folder` has only the copy of a
/// journal, moves the original back from `before`. Leaves all other journals in `before`, because they may be older or
/// newer than the database.
pub(super) fn put_back(folder: &Path, before: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let draft = entry?.path();
        let journal = draft.with_extension("jnl");
        let kept = before.join(journal.file_name().unwrap_or_default());
        let is_draft = draft.extension().is_some_and(|end| end == "anew");
        if is_draft && !journal.exists() && kept.exists() {
            fs::rename(kept, journal)?;
        }
    }
    Ok(())
}

/// Returns a description of the damage in four cases: `folder` has no journal; a journal is missing; a journal other
/// than the newest is empty; or a journal has unreadable data although a later journal has data. A failed write can
/// leave a torn batch at the end of the last journal with data, and one empty journal after it. Neither the torn batch
/// nor the empty journal counts as damage. `oldest` is the number of the journal that was the oldest at the last clean
/// shutdown, if it is known.
pub(super) fn damage(folder: &Path, oldest: Option<u64>) -> io::Result<Option<String>> {
    if fs::read(folder.join("version"))? != JOURNAL_MAGIC {
        return Ok(None);
    }
    let journals = journals(folder)?;
    let (Some((first, _)), Some((last, _))) = (journals.first(), journals.last()) else {
        return Ok(Some("the database has no journal".to_owned()));
    };
    if let Some(oldest) = oldest.filter(|oldest| oldest < first) {
        return Ok(Some(format!("the journal {oldest}.jnl is missing")));
    }
    if let Some(pair) = journals.windows(2).find(|pair| pair[0].0 + 1 < pair[1].0) {
        return Ok(Some(format!("the journal {}.jnl is missing", pair[0].0 + 1)));
    }
    let mut is_continued = false;
    for (number, journal) in journals.iter().rev() {
        if is_continued && let Some(at) = unreadable_from(&fs::read(journal)?) {
            return Ok(Some(format!("the journal {number}.jnl is unreadable from byte {at}")));
        }
        let is_empty = !has_batch(journal)?;
        if is_empty && number != last {
            return Ok(Some(format!("the journal {number}.jnl is empty")));
        }
        is_continued |= !is_empty;
    }
    Ok(None)
}

fn has_batch(journal: &Path) -> io::Result<bool> {
    let mut first = Vec::new();
    File::open(journal)?.take(1).read_to_end(&mut first)?;
    Ok(first == [START_TAG])
}

/// Returns the offset after the last readable batch; `None` if only zeros follow this batch, because the engine fills
/// preallocated space with zeros.
fn unreadable_from(journal: &[u8]) -> Option<usize> {
    let mut rest = journal;
    let mut end = 0;
    while skip_batch(&mut rest) == Some(true) {
        end = journal.len() - rest.len();
    }
    journal[end..].iter().any(|byte| *byte != 0).then_some(end)
}

/// Replaces each journal in `folder` by a synced copy, and keeps the original in `before`. If a failed opening has
/// already left an older original of the journal in `before`, keeps the older original instead.
pub(super) fn rewrite_journals(folder: &Path, before: &Path) -> io::Result<()> {
    fs::create_dir_all(before)?;
    for (_, journal) in journals(folder)? {
        let draft = journal.with_extension("anew");
        copy(&journal, &draft)?;
        let kept = before.join(journal.file_name().unwrap_or_default());
        if !kept.exists() {
            fs::rename(&journal, kept)?;
        }
        // If the process crashes before the next rename, `put_back` repairs the folder.
        fs::rename(&draft, &journal)?;
    }
    File::open(before)?.sync_all()?;
    File::open(folder)?.sync_all()
}

/// Copies a file through memory. A copy by the operating system (`fs::copy`) could share disk blocks with the original,
/// and would then not write the data to the disk again.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = File::open(from)?;
    let mut to = File::create(to)?;
    let mut piece = vec![0; COPY_CHUNK_BYTES];
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            return to.sync_all();
        }
        to.write_all(&piece[..read])?;
    }
}

/// Truncates the newest journal before its first batch with a wrong checksum, and keeps a copy of the original journal.
/// Returns the path of this copy. Returns `None` if no checksum is wrong, or if the format of the journal is unknown.
pub(super) fn truncate_torn_batch(folder: &Path) -> io::Result<Option<PathBuf>> {
    if fs::read(folder.join("version"))? != JOURNAL_MAGIC {
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

/// Returns the number of the oldest journal; `None` if `folder` has no journal.
pub(super) fn oldest(folder: &Path) -> io::Result<Option<u64>> {
    Ok(journals(folder)?.first().map(|(number, _)| *number))
}

/// Returns the journals in a folder with their numbers, in ascending order.
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

/// Returns the start of the first batch that is complete but has a wrong checksum.
fn first_torn(journal: &[u8]) -> Option<usize> {
    let mut rest = journal;
    loop {
        let begin = journal.len() - rest.len();
        if !skip_batch(&mut rest)? {
            return Some(begin);
        }
    }
}

/// Removes the batch at the beginning of `rest`. Returns whether its checksum is correct; `None` if `rest` does not
/// begin with a whole batch.
fn skip_batch(rest: &mut &[u8]) -> Option<bool> {
    let [START_TAG, ..] = take::<13>(rest)? else { return None };
    let mut hash = Xxh3Default::new();
    loop {
        let before = *rest;
        match take::<1>(rest)? {
            [ITEM_TAG] => {
                // Skip the kind of the item, the compression and the number of the table.
                take::<10>(rest)?;
                let key = u16::from_le_bytes(take(rest)?);
                let _uncompressed = take::<4>(rest)?;
                let value = u32::from_le_bytes(take(rest)?);
                *rest = rest.get(usize::from(key) + value as usize..)?;
            }
            [CLEAR_TAG] => {
                take::<8>(rest)?;
            }
            [END_TAG] => {
                let checksum = u64::from_le_bytes(take(rest)?);
                return (take(rest)? == JOURNAL_MAGIC).then_some(checksum == hash.digest());
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
