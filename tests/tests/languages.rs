//! Tests of the SDKs, of the templates of new projects, and of the guide's pages about languages. Handlers in different
//! languages must behave alike: each SDK has the examples `conformance` and `orders`. The tests run the components of
//! these examples in the host (the program `ordain`) with the same events, and compare messages, dead letters and log
//! lines. A further test connects handlers in three languages to a chain.

mod languages {
    mod chain;
    mod conformance;
    mod expectation;
    mod guide;
    mod language;
    mod orders;
    mod output;
    mod sdks;
    mod templates;
    mod tools;
}
