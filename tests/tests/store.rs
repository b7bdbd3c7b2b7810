//! Tests of the embedded store, and of the binary form of records that all stores use. No test here may
//! start many processes: a process that is being forked holds the locks of its parent for a moment.

mod store {
    mod codec;
    mod embedded;
}
