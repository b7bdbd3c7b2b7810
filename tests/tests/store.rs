//! Tests of the embedded store, and of the binary form of records that all stores use. No test here may start many
//! processes: after a fork, the child holds the locks of its parent for a moment.

mod store {
    mod codec;
    mod embedded;
}
