//! Recognises a file by its inode and by its content.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirEntryExt as _, FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordain_cloudevents::is_blank_byte;
use ordain_store::checkpoint::{FileProgress, ReadFingerprint, created_ns};
use ordain_util::io_error::leads_to_no_file;
use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

/// Returns the fingerprint of the bytes of a file before the position `end`.
pub(super) fn fingerprint(file: &File, end: u64) -> io::Result<ReadFingerprint> {
    let head = TailFingerprint::read(file, end.min(TAIL_LIMIT_BYTES as u64))?;
    Ok(ReadFingerprint::new(head.bytes(), &TailFingerprint::read(file, end)?))
}

/// Returns whether a file has the inode of a known file, and was created at the same time. A creation time of 0 is
/// unknown, and counts as equal.
pub(crate) fn is_same_inode(progress: &FileProgress, metadata: &Metadata) -> bool {
    // A caller may compare a file with thousands of files, and the conversion of the time is slow.
    if progress.inode != metadata.ino() {
        return false;
    }
    let created = created_ns(metadata);
    let before = progress.created_ns;
    created == before || created == 0 || before == 0
}

/// Searches for a known file, under any name, in the folder in which the file was last seen. Recognises the file by its
/// inode and creation time.
pub(crate) fn find_by_identity(
    progress: &FileProgress,
) -> io::Result<Option<(PathBuf, Arc<File>)>> {
    let Some(folder) = Path::new(&progress.path).parent() else { return Ok(None) };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if leads_to_no_file(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.ino() != progress.inode {
            continue;
        }
        let path = entry.path();
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if leads_to_no_file(&error) => continue,
            Err(error) => return Err(error),
        };
        if is_same_inode(progress, &metadata)
            && let Some(file) = open_at(&path, metadata.dev(), metadata.ino())?
        {
            return Ok(Some((path, file)));
        }
    }
    Ok(None)
}

/// Opens a file at its last known path. Returns `None` if the path no longer leads to the file.
pub(super) fn open_same(progress: &FileProgress) -> io::Result<Option<Arc<File>>> {
    open_at(Path::new(&progress.path), progress.device, progress.inode)
}

pub(super) fn open_at(path: &Path, device: u64, inode: u64) -> io::Result<Option<Arc<File>>> {
    // This check comes before the open, because the open of a pipe may block forever.
    let is_file = |metadata: &Metadata| {
        metadata.is_file() && (metadata.dev(), metadata.ino()) == (device, inode)
    };
    match fs::metadata(path) {
        Ok(metadata) if is_file(&metadata) => {}
        Ok(_) => return Ok(None),
        Err(error) if leads_to_no_file(&error) => return Ok(None),
        Err(error) => return Err(error),
    }
    match File::open(path) {
        Ok(file) if is_file(&file.metadata()?) => Ok(Some(Arc::new(file))),
        Ok(_) => Ok(None),
        Err(error) if leads_to_no_file(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether `copy` begins with the whole content of `file`. Compares only the first and the last bytes of the
/// content.
pub(super) fn is_whole_copy(file: &File, copy: &File) -> io::Result<bool> {
    Ok(common_beginning(file, copy, file.metadata()?.len())?.is_some())
}

/// Returns whether two different files have the same content, up to the end of the shorter file. Compares only the
/// first and the last of the common bytes. If `file` has more bytes than the other file, the common bytes must contain
/// a whole line. Without this rule, files with different content could match: they may begin with the same blanks after
/// a truncation, or with the same half of a line. The result is also `true` if a program truncates one of the files
/// during the comparison; a later scan repeats the comparison.
pub(super) fn is_copy_of(file: &File, other: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let other_metadata = other.metadata()?;
    if (metadata.dev(), metadata.ino()) == (other_metadata.dev(), other_metadata.ino()) {
        return Ok(false);
    }
    let length = metadata.len();
    let other_length = other_metadata.len();
    let common_length = length.min(other_length);
    let is_whole = length == common_length;
    Ok(match common_beginning(other, file, common_length)? {
        Some(last) => is_whole || has_whole_line(&last),
        None => file.metadata()?.len() < length || other.metadata()?.len() < other_length,
    })
}

/// Returns whether the bytes that two files have in common contain a whole line. `last` contains the last of these
/// bytes. A line that is blank does not count. If the files have more than [`TAIL_LIMIT_BYTES`] bytes in common, a part
/// of a line counts as a whole line.
pub(super) fn has_whole_line(last: &TailFingerprint) -> bool {
    let bytes = last.bytes();
    let mut end = bytes.len();
    if last.end() <= TAIL_LIMIT_BYTES as u64 {
        end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    }
    !bytes[..end].iter().copied().all(is_blank_byte)
}

/// Compares the bytes before the position `length` in two files: only the first and the last of these bytes, each at
/// most [`TAIL_LIMIT_BYTES`]. Returns the last bytes. Returns `None` if the files differ, or if a file is shorter than
/// `length`, for example because a program has truncated the file.
pub(super) fn common_beginning(
    one: &File,
    two: &File,
    length: u64,
) -> io::Result<Option<TailFingerprint>> {
    let head = TailFingerprint::read_if_whole(one, length.min(TAIL_LIMIT_BYTES as u64))?;
    let tail = TailFingerprint::read_if_whole(one, length)?;
    let (Some(head), Some(tail)) = (head, tail) else { return Ok(None) };
    Ok((head.is_in(two)? && tail.is_in(two)?).then_some(tail))
}

pub(in crate::source) fn head(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; TAIL_LIMIT_BYTES];
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

pub(super) fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Replaces the error of a file that this process has no right to read by `None`, so that the file counts as missing.
pub(super) fn if_permitted<T>(opened: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match opened {
        Err(error) if is_denied(&error) => Ok(None),
        opened => opened,
    }
}
