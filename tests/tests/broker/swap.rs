//! Tests of handler versions that are added or removed while the host runs.

mod files;
mod several;
mod support;
mod under_load;
