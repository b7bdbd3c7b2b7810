//! Events over HTTP.

mod ingress {
    mod alone;
    mod inbox;
    mod pair;
    mod support;
}
