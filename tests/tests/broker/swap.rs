//! Tests of new versions of handlers while the host runs.

mod files;
mod several;
mod support;
mod under_load;
