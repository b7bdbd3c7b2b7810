//! Tests of the disk below a running host: power failures, failed syncs, a folder that is moved away, and backups.

mod folder;
mod power_cut;
mod sink;
mod support;
mod synced;
