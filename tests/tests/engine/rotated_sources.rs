//! Tests of event files under log rotation. Another program may rename, copy, truncate, compress or remove the files at
//! any time. The host must read each line once and in order, and must not end. If the host cannot find the lines that
//! it has not read yet, it must report the loss. The stream is `fifo`, so the sequences of later events do not show
//! that the host has skipped a line.

mod compression;
mod copytruncate;
mod path;
mod removal;
mod rename;
mod support;
