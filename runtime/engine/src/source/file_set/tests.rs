//! Tests of the file set. Each test changes the files of the folder between two steps of a scan.

mod compressed;
mod fixture;
mod ignored;
mod scan;
mod uncompressed;
