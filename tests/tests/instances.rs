//! Several processes that share the streams of one store.

mod instances {
    mod hand_over;
    mod stale;
    mod support;
}
