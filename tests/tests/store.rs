//! Tests of the embedded store, and of the binary encoding of records that all stores use. No test in this program may
//! start many processes. Between `fork` and `exec`, a child process holds the file locks of its parent, and an embedded
//! store with a held lock cannot be opened.

mod store {
    mod codec;
    mod embedded;
}
