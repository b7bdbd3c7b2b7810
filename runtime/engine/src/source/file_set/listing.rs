//! The listing of the folders of a source. A listing never contains a file from another device that is mounted there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ordain_store::checkpoint::created_ns;
use ordain_util::file_pattern::{FilePattern, FileRole, is_earlier_in_series};
use ordain_util::io_error::leads_to_no_file;

use super::FileSet;
use super::gzip::content_head;
use super::identity::{head, is_denied};
use super::listed_file::{ListedFile, matching_files, open_listed, sort_in_reading_order};
use super::tracked_file::TrackedFile;

/// The source reads an unfinished file (see [`FileSet::is_unfinished`]) that has not changed for this time. Such a file
/// may never become complete, for example if an operator has recovered only a part of a damaged compressed file. The
/// last bytes of a damaged compressed file state a random length.
const UNCOMPRESS_TIMEOUT: Duration = Duration::from_mins(1);

impl FileSet {
    /// Returns the files of the folder that match the pattern and have a wanted role, in reading order. If the path of
    /// the source is a link, also returns the older files of the file to which the link leads. If the wanted roles
    /// include compressed files, leaves out a file to which a program is still writing the content of a compressed
    /// file. Returns `None` if a folder is missing, or if another device is mounted there. If programs rename the files
    /// of a folder without a pause, sets `is_listing_outdated` and also returns `None`.
    pub(super) fn list(
        &mut self,
        pattern: &FilePattern,
        is_wanted: impl Fn(FileRole) -> bool,
    ) -> io::Result<Option<Vec<ListedFile>>> {
        self.is_listing_outdated = false;
        for tracked in &mut self.files {
            tracked.start = None;
        }
        if !self.is_available(pattern.folder())? {
            return Ok(None);
        }
        let target = pattern.target();
        if let Some(target) = &target
            && !self.is_available(target.folder())?
        {
            return Ok(None);
        }
        if let Some(seconds) = self.folder_failures.recover() {
            tracing::info!(
                stream = self.stream, folder = %pattern.folder().display(), seconds,
                "source continues: the folder is available again"
            );
        }
        let mut listed = Vec::new();
        let role_of = |name: &OsStr| pattern.role(name).filter(|role| is_wanted(*role));
        if !self.list_folder(pattern, self.is_first_start, role_of, &mut listed)? {
            return Ok(None);
        }
        if let Some(target) = &target {
            // The link may lead to another file than before. The older files of this other file do not belong to the
            // source, so ignore them.
            let is_known = |tracked: &TrackedFile| target.names(Path::new(&tracked.progress.path));
            let is_new = !self.files.is_empty() && !self.files.iter().any(is_known);
            let is_ignored = self.is_first_start || is_new;
            let is_wanted = |role| role != FileRole::Live && is_wanted(role);
            let role_of = |name: &OsStr| target.role(name).filter(|role| is_wanted(*role));
            if !self.list_folder(target, is_ignored, role_of, &mut listed)? {
                return Ok(None);
            }
            if is_wanted(FileRole::Rotated { number: 0 })
                && !self.list_predecessors(target, &mut listed)?
            {
                return Ok(None);
            }
        }
        if is_wanted(FileRole::Live) && !self.uncompressed.is_empty() {
            let present: BTreeSet<_> = listed.iter().map(ListedFile::identity).collect();
            self.uncompressed.retain(|file| present.contains(file));
        }
        // A file may have several names, for example if the path is a link to a file with the name of an older file.
        let live = listed.iter().filter(|found| found.role == FileRole::Live);
        let live: BTreeSet<_> = live.map(ListedFile::identity).collect();
        listed.retain(|found| found.role == FileRole::Live || !live.contains(&found.identity()));
        self.remove_unfinished(&mut listed)?;
        sort_in_reading_order(&mut listed, pattern);
        Ok(Some(listed))
    }

    /// Removes the files to which a program is still writing the content of a compressed file. The set recognises such
    /// a file only when the file is complete: before that, the file may lack bytes that were read, and the source would
    /// read these bytes a second time. Logs a warning about these files, unless all of them are empty.
    fn remove_unfinished(&mut self, listed: &mut Vec<ListedFile>) -> io::Result<()> {
        let is_compressed = |found: &&ListedFile| found.role == FileRole::Compressed;
        let compressed: BTreeMap<PathBuf, &ListedFile> = listed
            .iter()
            .filter(is_compressed)
            .map(|found| (found.path.with_extension(""), found))
            .collect();
        let mut unfinished = BTreeSet::new();
        for found in listed.iter().filter(|found| !found.is_ignored) {
            if let Some(compressed) = compressed.get(&found.path)
                && self.is_unfinished(found, compressed)?
            {
                unfinished.insert(found.path.clone());
                self.uncompressed.insert(found.identity());
            }
        }
        let is_begun =
            |found: &&ListedFile| found.metadata.len() > 0 && unfinished.contains(&found.path);
        if let Some(found) = listed.iter().find(is_begun)
            && self.unfinished_throttle.allow()
        {
            tracing::warn!(
                stream = self.stream, path = %found.path.display(), files = unfinished.len(),
                "file not read yet: it contains only the beginning of the content of a compressed file in the same \
                 folder, so a program may still be uncompressing that file. Ordain reads the file when it is complete, \
                 or when it has not changed for a minute"
            );
        }
        listed.retain(|found| !unfinished.contains(&found.path));
        Ok(())
    }

    /// Returns whether a program is still writing the content of the file `compressed` to the file `found`. The result
    /// is `true` if `found` is a new file, was created after `compressed`, has changed within [`UNCOMPRESS_TIMEOUT`],
    /// and has only the beginning of the content. A creation time of 0 is unknown; the result is then `false`, because
    /// a program may instead be compressing `found`.
    fn is_unfinished(&self, found: &ListedFile, compressed: &ListedFile) -> io::Result<bool> {
        let compressed_created = created_ns(&compressed.metadata);
        let is_newer = compressed_created > 0 && created_ns(&found.metadata) > compressed_created;
        let age = found.metadata.modified()?.elapsed();
        // The clock of a file server may be ahead of the clock of this machine.
        let age = age.unwrap_or_else(|ahead| ahead.duration());
        if !is_newer
            || age >= UNCOMPRESS_TIMEOUT
            || self.files.iter().any(|tracked| tracked.is(&found.metadata))
        {
            return Ok(false);
        }
        // If the path no longer leads to the compressed file, leave the decision to the next listing.
        let Some((_, length)) = self.compressed.content(compressed)? else { return Ok(true) };
        if length.is_none_or(|length| found.metadata.len() >= length) {
            return Ok(false);
        }
        match (open_listed(found), open_listed(compressed)) {
            (Ok(Some(file)), Ok(Some(compressed))) => {
                let written = head(&file)?;
                Ok(content_head(&compressed)?.is_some_and(|content| content.starts_with(&written)))
            }
            (Err(error), _) | (_, Err(error)) if is_denied(&error) => Ok(false),
            (Err(error), _) | (_, Err(error)) => Err(error),
            _ => Ok(true),
        }
    }

    /// Returns whether `found` is probably the result of uncompressing a file, and not a file of new lines. One of
    /// three signs is sufficient. The compressed file is beside `found`; an earlier listing found `found` while a
    /// program was uncompressing it; or the modification time of `found` is before its creation. The third sign is
    /// valid because programs give the uncompressed file the modification time of the compressed file.
    pub(super) fn is_uncompressed(&self, found: &ListedFile, listed: &[ListedFile]) -> bool {
        let is_beside = listed.iter().any(|other| {
            other.role == FileRole::Compressed && other.path.with_extension("") == found.path
        });
        let times = found.metadata.modified().ok().zip(found.metadata.created().ok());
        let is_restored = times.is_some_and(|(modified, created)| modified < created);
        is_beside || is_restored || self.uncompressed.contains(&found.identity())
    }

    /// Returns whether a folder exists and is still on the device of the first call. Otherwise logs a warning.
    fn is_available(&mut self, folder: &Path) -> io::Result<bool> {
        let device = match fs::metadata(folder) {
            Ok(metadata) => metadata.is_dir().then(|| metadata.dev()),
            Err(error) if leads_to_no_file(&error) => None,
            Err(error) => return Err(error),
        };
        let before = self.folder_devices.get(folder).copied();
        if let Some(device) = device.filter(|device| before.is_none_or(|before| before == *device))
        {
            self.folder_devices.insert(folder.to_owned(), device);
            return Ok(true);
        }
        self.folder_failures.record_failure();
        if self.folder_throttle.allow() {
            tracing::warn!(
                stream = self.stream, folder = %folder.display(),
                "source waits: the folder is missing, or another device is mounted there; make the folder available"
            );
        }
        Ok(false)
    }

    /// Adds to `listed`, as older files, the files to which the link of the path has led since the last scan. A program
    /// may write the date or the time into the names of its files, and may let the link lead to the newest file. The
    /// names of the added files are between the name of the newest tracked file before `target` and the name of
    /// `target`. Returns `false` if programs rename the files of the folder without a pause.
    fn list_predecessors(
        &mut self,
        target: &FilePattern,
        listed: &mut Vec<ListedFile>,
    ) -> io::Result<bool> {
        let name_of = |tracked: &TrackedFile| {
            let path = Path::new(&tracked.progress.path);
            let is_beside = path.parent() == Some(target.folder());
            let name = path.file_name().filter(|_| is_beside)?;
            Some(name.to_str()?.to_owned())
        };
        let names: Vec<String> = self.files.iter().filter_map(name_of).collect();
        let newest = target.newest_predecessor(names.iter().map(String::as_str));
        let Some(newest) = newest else { return Ok(true) };
        // The folder may have files of the series that are older than all files of the source. The process may have no
        // right to read them.
        let role_of = |name: &OsStr| {
            let name = name.to_str()?;
            let is_between = is_earlier_in_series(newest, name)
                && target.newest_predecessor(std::iter::once(name)).is_some();
            is_between.then_some(FileRole::Rotated { number: 0 })
        };
        let mut series = Vec::new();
        if !self.list_folder(target, false, role_of, &mut series)? {
            return Ok(false);
        }
        let known: BTreeSet<_> = listed.iter().map(ListedFile::identity).collect();
        listed.extend(series.into_iter().filter(|found| !known.contains(&found.identity())));
        Ok(true)
    }

    /// Adds to `listed` each file of a pattern's folder if `role_of` returns a role for its name. Leaves out a file
    /// whose name is not UTF-8, and logs a warning: the progress of a file contains its name as text. `is_ignored` is
    /// `true` if the source ignores all older files of the folder that the set does not track yet. Returns `false` if
    /// programs rename the files of the folder without a pause.
    fn list_folder(
        &mut self,
        pattern: &FilePattern,
        is_ignored: bool,
        role_of: impl Fn(&OsStr) -> Option<FileRole>,
        listed: &mut Vec<ListedFile>,
    ) -> io::Result<bool> {
        let Some(matching) = matching_files(pattern, role_of)? else {
            self.is_listing_outdated = true;
            return Ok(false);
        };
        for (path, role, metadata) in matching {
            if path.file_name().and_then(OsStr::to_str).is_none() {
                if self.name_throttle.allow() {
                    tracing::warn!(
                        stream = self.stream, path = %path.display(),
                        "file skipped: its name is not UTF-8, so Ordain cannot record how far it has read the file; \
                         rename the file"
                    );
                }
                continue;
            }
            let Some(metadata) = self.unless_denied(&path, role, metadata.map(Some))? else {
                continue;
            };
            let is_ignored = is_ignored && role != FileRole::Live;
            listed.push(ListedFile { path, role, metadata, is_ignored });
        }
        Ok(true)
    }

    /// Returns `None` if the path no longer leads to the file, or if the file is an older file that this process has no
    /// right to read.
    pub(super) fn open_listed(&mut self, listed: &ListedFile) -> io::Result<Option<Arc<File>>> {
        let opened = open_listed(listed);
        self.is_listing_outdated |= matches!(opened, Ok(None));
        self.unless_denied(&listed.path, listed.role, opened)
    }

    /// Replaces the error by `None` and a warning if this process has no right to read an older file, which the set
    /// then treats as missing. The error would end the whole run, but the other streams must continue.
    fn unless_denied<T>(
        &mut self,
        path: &Path,
        role: FileRole,
        result: io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        match result {
            Err(error) if is_denied(&error) && role != FileRole::Live => {
                if self.denied_throttle.allow() {
                    tracing::warn!(
                        stream = self.stream, path = %path.display(),
                        "older file skipped: {error}; allow the user who runs Ordain to read the file"
                    );
                }
                Ok(None)
            }
            result => result,
        }
    }
}
