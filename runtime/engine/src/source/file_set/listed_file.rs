//! The files that the folder of a source lists, in the order in which the source reads them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ordain_store::checkpoint::FileProgress;
use ordain_util::file_pattern::{FilePattern, FileRole};
use ordain_util::io_error::leads_to_no_file;

use super::identity::open_at;

pub(super) struct ListedFile {
    pub(super) path: PathBuf,
    pub(super) role: FileRole,
    pub(super) metadata: Metadata,
    /// `true` for an older file that existed at one of two times: at the first start of the stream, or when the path of
    /// the source began to lead to another file. The source does not read such a file, unless the set already tracks
    /// it.
    pub(super) is_ignored: bool,
}

impl ListedFile {
    pub(super) fn identity(&self) -> (u64, u64) {
        (self.metadata.dev(), self.metadata.ino())
    }
}

/// The positions of files in a listing, by inode.
pub(super) type FilePositions = BTreeMap<u64, usize>;

pub(super) fn positions(listed: &[ListedFile]) -> FilePositions {
    listed.iter().enumerate().map(|(at, found)| (found.metadata.ino(), at)).collect()
}

/// A file of a folder, with its role.
pub(super) type MatchingFile = (PathBuf, FileRole, io::Result<Metadata>);

pub(super) fn is_rotated(role: FileRole) -> bool {
    matches!(role, FileRole::Rotated { .. })
}

const LISTINGS_LIMIT: usize = 64;

/// Returns the files of the folder that have a role, in the order of their paths. `role_of` returns the role of the
/// file with a name, or `None` if the caller does not need the file; this function reads nothing of such a file. A
/// listing can lack a file that a program renames during the listing. This function therefore repeats the listing until
/// a listing has all files of the previous listing under the same names. This listing may also have new files, because
/// programs may create files without a pause. Returns `None` if [`LISTINGS_LIMIT`] listings were made, and none of them
/// has all files of the listing before it.
pub(super) fn matching_files(
    pattern: &FilePattern,
    role_of: impl Fn(&OsStr) -> Option<FileRole>,
) -> io::Result<Option<Vec<MatchingFile>>> {
    let mut before: Option<Vec<MatchingFile>> = None;
    for _ in 0..LISTINGS_LIMIT {
        let listed = list_matching(pattern, &role_of)?;
        if let (Some(before), Some(files)) = (&before, &listed)
            && has_all(files, before)
        {
            return Ok(listed);
        }
        before = listed;
    }
    Ok(None)
}

/// Returns whether a listing has all files of an earlier listing, under the same names. Both listings are in the order
/// of their paths.
fn has_all(listed: &[MatchingFile], before: &[MatchingFile]) -> bool {
    let mut listed = listed.iter().map(identity);
    before.iter().map(identity).all(|file| listed.any(|other| other == file))
}

/// Returns the path, the device and the inode of a file. The numbers are 0 if its metadata cannot be read.
fn identity((path, _, metadata): &MatchingFile) -> (&Path, u64, u64) {
    metadata.as_ref().map_or((path, 0, 0), |metadata| (path, metadata.dev(), metadata.ino()))
}

/// Lists the folder once. Returns `None` if a name vanished after it was listed, because the listing may then lack a
/// renamed file. Also returns `None` if the folder is missing.
fn list_matching(
    pattern: &FilePattern,
    role_of: impl Fn(&OsStr) -> Option<FileRole>,
) -> io::Result<Option<Vec<MatchingFile>>> {
    let mut matching = Vec::new();
    let entries = match fs::read_dir(pattern.folder()) {
        Ok(entries) => entries,
        Err(error) if leads_to_no_file(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name();
        let Some(role) = role_of(&name) else { continue };
        let path = pattern.path_of(&name);
        match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_file() => {}
            // A link that leads to no file keeps its name.
            Err(error) if leads_to_no_file(&error) => {
                if !fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
                    return Ok(None);
                }
            }
            metadata => matching.push((path, role, metadata)),
        }
    }
    matching.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    Ok(Some(matching))
}

pub(super) fn sort_in_reading_order(listed: &mut [ListedFile], pattern: &FilePattern) {
    listed.sort_by_cached_key(|listed| {
        let is_last = listed.role == FileRole::Live && !pattern.is_glob();
        let number = rotation_number(listed, pattern);
        let modified = listed.metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        (is_last, modified, u64::MAX - number, listed.path.clone())
    });
}

/// Returns the number that log rotation has appended to the name of the file; 0 if the name has no number.
fn rotation_number(listed: &ListedFile, pattern: &FilePattern) -> u64 {
    let role = match listed.role {
        FileRole::Compressed => {
            let plain = listed.path.with_extension("");
            plain.file_name().and_then(|name| pattern.role(name))
        }
        role => Some(role),
    };
    match role {
        Some(FileRole::Rotated { number }) => number,
        _ => 0,
    }
}

/// Returns the older files to which log rotation has given other names than `path`, in reading order. Returns no
/// compressed file.
pub(crate) fn rotated_files(path: &Path) -> io::Result<Vec<FileProgress>> {
    let pattern = FilePattern::new(path);
    // `path` names one file, so a `*` or `?` in its name is an ordinary character. The pattern would treat it as a
    // wildcard, and would also match the older files of other files.
    if pattern.is_glob() {
        return Ok(Vec::new());
    }
    let mut listed = Vec::new();
    let role_of = |name: &OsStr| pattern.role(name).filter(|role| is_rotated(*role));
    let matching = matching_files(&pattern, role_of)?;
    let matching = matching.ok_or_else(|| {
        io::Error::other(
            "the folder is missing, or programs rename the files of the folder without a pause",
        )
    })?;
    for (path, role, metadata) in matching {
        listed.push(ListedFile { path, role, metadata: metadata?, is_ignored: false });
    }
    sort_in_reading_order(&mut listed, &pattern);
    let progress = |listed: &ListedFile| {
        FileProgress::unread(listed.path.display().to_string(), &listed.metadata)
    };
    Ok(listed.iter().map(progress).collect())
}

/// Opens a listed file. Returns `None` if the path no longer leads to the file.
pub(super) fn open_listed(listed: &ListedFile) -> io::Result<Option<Arc<File>>> {
    open_at(&listed.path, listed.metadata.dev(), listed.metadata.ino())
}
