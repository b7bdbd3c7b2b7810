//! A file that stays locked until it is dropped.

use std::fs::File;
use std::ops::Deref;

/// A file that this process has locked. The drop unlocks the file. To only close the file is not enough: a program that
/// this process is starting has copies of all open files until it runs its own code, and each copy keeps the lock.
#[derive(Debug)]
pub struct LockedFile(File);

impl From<File> for LockedFile {
    /// The caller has locked `file`. If the file system cannot lock files, the value is only an open file.
    fn from(file: File) -> Self {
        Self(file)
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // The close that follows unlocks the file as well, unless another program has a copy.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that is being started holds copies of the open files for a short time. A second descriptor of the same
    /// open file stands for such a copy.
    #[test]
    fn dropped_file_is_unlocked_although_a_copy_is_open() {
        let path = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        let open = || File::options().write(true).open(&path).expect("opened");
        let file = open();
        file.try_lock().expect("locked");
        let _copy = file.try_clone().expect("a copy");
        let locked = LockedFile::from(file);
        open().try_lock().expect_err("the file is locked");
        drop(locked);
        open().try_lock().expect("unlocked");
    }
}
