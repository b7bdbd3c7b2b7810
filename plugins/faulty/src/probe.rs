//! Reports about the environment that a handler sees in its sandbox.

use std::fmt::Display;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use ordain_sdk::prelude::*;

/// Time limit for a connection that the sandbox should refuse immediately.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Serialize)]
pub(crate) struct State {
    pub(crate) bytes: usize,
}

#[derive(Serialize)]
pub(crate) struct Calls {
    pub(crate) calls: u64,
}

#[derive(Serialize)]
pub(crate) struct Senses {
    time_ms: u64,
    monotonic_ns: u64,
    random: [u64; 4],
}

#[derive(Serialize)]
pub(crate) struct Sandbox {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    read: String,
    write: String,
    connect: String,
}

/// Reads the clocks and four random numbers.
pub(crate) fn senses() -> Result<Senses> {
    let start = Instant::now();
    let mut random = [0; 4];
    for number in &mut random {
        *number = getrandom::u64().or_reject("randomness")?;
    }
    let time_ms = SystemTime::UNIX_EPOCH.elapsed().or_reject("the clock")?.as_millis() as u64;
    Ok(Senses { time_ms, monotonic_ns: start.elapsed().as_nanos() as u64, random })
}

/// Reads the arguments and environment variables. Then attempts three operations that the sandbox must refuse: reads
/// the metadata of `path`, opens `path` for writing, and connects to `address`.
pub(crate) fn sandbox(path: &str, address: &str) -> Sandbox {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    Sandbox {
        arguments: std::env::args_os().map(lossy).collect(),
        environment: std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect(),
        read: answer(std::fs::metadata(path)),
        write: answer(std::fs::File::options().append(true).create(true).open(path)),
        connect: match address.parse::<SocketAddr>() {
            Ok(address) => answer(TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)),
            Err(error) => error.to_string(),
        },
    }
}

fn answer<T, E: Display>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => "allowed".into(),
        Err(error) => error.to_string(),
    }
}
