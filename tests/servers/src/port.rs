//! Ports for the servers of tests. A port stays reserved while its server is down: no other process that uses this
//! crate gets the port.
//!
//! The ports are outside the range from which the system chooses the local ports of connections. If the port of a
//! server were in that range, the system could give the port to a client as the client's local port while the server is
//! down. Even a client that tries to connect to this server could get the port, and would then connect to itself.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};

/// The first port. It is above the ports of most services. The last port is below 32768, where Linux's range of local
/// ports begins.
const FIRST_PORT: u16 = 20_000;
const PORT_COUNT: u16 = 12_000;
/// The number of ports below `FIRST_PORT` for servers whose port cannot be reserved (see [`free_everywhere`]).
const UNRESERVED_COUNT: u16 = 5_000;
/// The address at which this crate reserves ports: a listener at a port of this address marks the same port of
/// 127.0.0.1 as reserved. No server listens at this address on a port that can be reserved.
const RESERVED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A reserved port of 127.0.0.1. Until the value is dropped, no other user of this crate gets the port, not even in
/// another process. If the process is killed, the system ends the reservation.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: TcpListener,
}

impl Port {
    /// Reserves a port on which no process listens.
    pub fn take() -> Result<Self> {
        static TAKEN_COUNT: AtomicU16 = AtomicU16::new(0);
        // Each process begins at a port that depends on its process id. Each later search begins after the last port
        // that the process tried, so that the process does not reuse a released port immediately.
        let begin = (std::process::id() % u32::from(PORT_COUNT)) as u16;
        let begin = begin.wrapping_mul(37) % PORT_COUNT;
        let mut tries = (0..PORT_COUNT).map(|_| {
            let offset = TAKEN_COUNT.fetch_add(1, Ordering::Relaxed) % PORT_COUNT;
            FIRST_PORT + (begin + offset) % PORT_COUNT
        });
        tries.find_map(Self::reserve).context("every port is in use")
    }

    fn reserve(number: u16) -> Option<Self> {
        let reservation = TcpListener::bind((RESERVED, number)).ok()?;
        // This call fails if a process that does not use this crate listens on the port.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _reservation: reservation })
    }

    /// Returns the number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// This crate cannot reserve a port for a server that listens at every address, because the listener of the reservation
/// would keep the server from listening. The function therefore only checks that no process listens on the port now.
pub(crate) fn free_everywhere() -> Result<u16> {
    static TAKEN_COUNT: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % u32::from(UNRESERVED_COUNT)) as u16;
    let mut tries = (0..UNRESERVED_COUNT).map(|_| {
        let offset = TAKEN_COUNT.fetch_add(1, Ordering::Relaxed) % UNRESERVED_COUNT;
        FIRST_PORT - 1 - (begin.wrapping_mul(37) % UNRESERVED_COUNT + offset) % UNRESERVED_COUNT
    });
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    tries.find(is_free).context("every port is in use")
}

#[test]
fn port_is_reserved_once_and_accepts_a_listener() -> Result<()> {
    let one = Port::take()?;
    let other = Port::take()?;
    assert_ne!(one.number(), other.number());
    assert!(Port::reserve(one.number()).is_none());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, one.number()))?;
    drop((one, listener));
    Ok(())
}
