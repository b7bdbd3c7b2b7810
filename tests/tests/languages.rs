//! Tests of the SDKs: handlers in different languages must behave alike. Each SDK has the examples `conformance` and
//! `orders`. The tests run the components of these examples in the host (the program `ordain`) with the same events,
//! and compare messages, dead letters and log lines.

mod languages {
    mod conformance;
    mod expectation;
    mod language;
    mod orders;
    mod output;
}
