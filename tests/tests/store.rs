//! The embedded store, and the binary form of what every store keeps. No test here may start many
//! processes: a process that is being forked holds the locks of its parent for a moment.

mod store {
    mod codec;
    mod embedded;
}
