//! Helpers that the test programs in `tests/tests` share, and the conformance suite of the stores.

pub mod alerts;
pub mod amqp;
pub mod archive;
pub mod clients;
pub mod cloudevents_suite;
pub mod compilers;
pub mod conformance;
pub mod faulty;
pub mod guests;
pub mod guide;
pub mod host;
pub mod http;
pub mod incident;
pub mod ledger;
pub mod log;
pub mod lossy;
pub mod names;
pub mod plugins;
pub mod printed;
pub mod queue;
pub mod raw_amqp;
pub mod rig;
pub mod seed;
pub mod service;
pub mod tally;
pub mod workers;
