//! Tests of a host and its disk: power failures, failed syncs, a store's folder that is moved away or removed, and
//! backups.

mod folder;
mod power_cut;
mod sink;
mod support;
mod synced;
