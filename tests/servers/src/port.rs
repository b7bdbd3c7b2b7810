//! Ports that are nobody else's, also not while the server on them is down.
//!
//! Ports are never taken from those that the system hands out by itself: while a server is down,
//! its port could become the local end of any connection, even of one to that very port.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};

/// Below what Linux hands out (32768 and up), above where services are installed.
const FIRST: u16 = 20_000;
const PORTS: u16 = 12_000;
/// Below those: ports that are not reserved.
const UNRESERVED: u16 = 5_000;
/// Where ports are reserved: the same port of an address on which nothing is started.
const RESERVED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A port of 127.0.0.1, reserved among all processes that use this crate until it is dropped. The
/// system ends the reservation of a process that is killed.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: TcpListener,
}

impl Port {
    /// Reserves a port on which nobody listens.
    pub fn take() -> Result<Self> {
        static TAKEN: AtomicU16 = AtomicU16::new(0);
        // Processes begin at different places, and each goes on where it was, so that a port is
        // not used again at once.
        let begin = (std::process::id() % u32::from(PORTS)) as u16;
        let begin = begin.wrapping_mul(37) % PORTS;
        let mut tries = (0..PORTS).map(|_| {
            let offset = TAKEN.fetch_add(1, Ordering::Relaxed) % PORTS;
            FIRST + (begin + offset) % PORTS
        });
        tries.find_map(Self::reserve).context("every port is taken")
    }

    fn reserve(number: u16) -> Option<Self> {
        let reservation = TcpListener::bind((RESERVED, number)).ok()?;
        // Something else of the machine may listen there.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _reservation: reservation })
    }

    /// Which one it is.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// A port for a server that wants it on every address, so that it cannot be reserved: nobody listens
/// there now.
pub(crate) fn free_everywhere() -> Result<u16> {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % u32::from(UNRESERVED)) as u16;
    let mut tries = (0..UNRESERVED).map(|_| {
        let offset = TAKEN.fetch_add(1, Ordering::Relaxed) % UNRESERVED;
        FIRST - 1 - (begin.wrapping_mul(37) % UNRESERVED + offset) % UNRESERVED
    });
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    tries.find(is_free).context("every port is taken")
}

#[test]
fn a_port_is_taken_once_and_can_be_listened_to() -> Result<()> {
    let (one, other) = (Port::take()?, Port::take()?);
    assert_ne!(one.number(), other.number());
    assert!(Port::reserve(one.number()).is_none());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, one.number()))?;
    drop((one, listener));
    Ok(())
}
