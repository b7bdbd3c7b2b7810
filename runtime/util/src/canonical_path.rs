//! Canonical paths, which are equal for different spellings of the same file.

use std::path::{Path, PathBuf};

/// Maximum number of symbolic links that [`canonical_path`] follows, one after the other, to a missing file. Linux has
/// the same limit.
const LINKS_LIMIT: usize = 40;

/// Returns the absolute path of a file with all links resolved. If the file does not exist yet, returns the canonical
/// path of its folder, followed by the name of the file. The creation of the file therefore does not change the result.
/// If the folder does not exist either, returns the absolute path, in which links among the folders are not resolved.
pub fn canonical_path(path: &Path) -> PathBuf {
    if let Ok(canonical) = path.canonicalize() {
        return canonical;
    }
    // The path may be a link to a missing file.
    let mut path = path.to_owned();
    for _ in 0..LINKS_LIMIT {
        let Ok(target) = path.read_link() else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    match (folder.canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => std::path::absolute(&path).unwrap_or(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_have_the_same_canonical_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.ndjson");
        let before = canonical_path(&path);
        assert_eq!(
            canonical_path(&folder.path().join("./../").join(folder.path()).join("./out.ndjson")),
            before
        );
        std::fs::write(&path, "").expect("a file");
        assert_eq!(canonical_path(&path), before);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).expect("a link");
        assert_eq!(canonical_path(&link.join("out.ndjson")), before);
        assert!(canonical_path(Path::new("out.ndjson")).is_absolute());

        let to_missing = folder.path().join("to-missing");
        std::os::unix::fs::symlink("missing", &to_missing).expect("a link");
        let before = canonical_path(&to_missing);
        assert_eq!(before.file_name(), Some(std::ffi::OsStr::new("missing")));
        std::fs::write(&to_missing, "").expect("a file");
        assert_eq!(canonical_path(&to_missing), before);
    }
}
