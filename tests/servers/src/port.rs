//! Ports that no other process uses, even while the server on them is down.
//!
//! The ports are outside the range that the system assigns by itself. Otherwise, while a server is down, its port could
//! become the local end of any connection, even of a connection to that port.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};

/// The first port: below the range of Linux (32768 and up), above the ports of installed services.
const FIRST: u16 = 20_000;
const PORTS: u16 = 12_000;
/// The number of ports below `FIRST` for servers whose port cannot be reserved.
const UNRESERVED: u16 = 5_000;
/// The address that reserves ports: a listener on one of its ports reserves the same port of 127.0.0.1. No server
/// listens at this address.
const RESERVED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A port of 127.0.0.1, reserved among all processes that use this crate until the value is dropped. The system ends
/// the reservation of a killed process.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: TcpListener,
}

impl Port {
    /// Reserves a port on which no process listens.
    pub fn take() -> Result<Self> {
        static TAKEN: AtomicU16 = AtomicU16::new(0);
        // Processes begin at different ports, and each continues after its last port, so that a port is not used again
        // at once.
        let begin = (std::process::id() % u32::from(PORTS)) as u16;
        let begin = begin.wrapping_mul(37) % PORTS;
        let mut tries = (0..PORTS).map(|_| {
            let offset = TAKEN.fetch_add(1, Ordering::Relaxed) % PORTS;
            FIRST + (begin + offset) % PORTS
        });
        tries.find_map(Self::reserve).context("every port is in use")
    }

    fn reserve(number: u16) -> Option<Self> {
        let reservation = TcpListener::bind((RESERVED, number)).ok()?;
        // Another process of the machine may listen on the port.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _reservation: reservation })
    }

    /// Returns the number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Returns a port for a server that listens at every address. Such a port cannot be reserved: the function only checks
/// that no process listens on it now.
pub(crate) fn free_everywhere() -> Result<u16> {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % u32::from(UNRESERVED)) as u16;
    let mut tries = (0..UNRESERVED).map(|_| {
        let offset = TAKEN.fetch_add(1, Ordering::Relaxed) % UNRESERVED;
        FIRST - 1 - (begin.wrapping_mul(37) % UNRESERVED + offset) % UNRESERVED
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
