//! Tests of a running host whose disk causes trouble: power failures, failed syncs, a folder that is moved away, and
//! backups.

mod folder;
mod power_cut;
mod sink;
mod support;
mod synced;
