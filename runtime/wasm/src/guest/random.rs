//! Random numbers that are derived from the stream, the key and the sequence of an event, so that every try of the
//! event gets the same numbers.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;
use sha2::{Digest, Sha256};
use wasmtime_wasi::p2::bindings::random::{insecure, insecure_seed, random};

use super::super::failure::LimitExceeded;
use super::super::settings::DisplaySize;
use super::EventIdentity;

/// Maximum number of random bytes that a guest (the WebAssembly code of a handler) may request in one call. The bytes
/// are generated in the host's memory.
const REQUEST_LIMIT_BYTES: u64 = 1 << 20;

/// The generator of an event's random numbers. The generator is seeded only at its first use in an event, because most
/// handlers never use random numbers.
#[derive(Default)]
pub(super) struct EventRandom {
    event: Option<EventIdentity>,
    rng: Option<ChaCha12Rng>,
}

impl EventRandom {
    pub(super) fn begin_event(&mut self, event: &EventIdentity) {
        self.event = Some(event.clone());
        self.rng = None;
    }

    fn rng(&mut self) -> &mut ChaCha12Rng {
        let event = self.event.as_ref();
        self.rng.get_or_insert_with(|| ChaCha12Rng::from_seed(seed(event)))
    }

    fn bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        if len > REQUEST_LIMIT_BYTES {
            let words = format!(
                "the handler requested {len} random bytes at once; one call may request at most {}",
                DisplaySize(REQUEST_LIMIT_BYTES as usize),
            );
            return Err(LimitExceeded { limit: None, message: words }.into());
        }
        let mut bytes = vec![0; len as usize];
        self.rng().fill_bytes(&mut bytes);
        Ok(bytes)
    }
}

fn seed(event: Option<&EventIdentity>) -> [u8; 32] {
    let mut hash = Sha256::new_with_prefix("ordain random 1\0");
    if let Some(event) = event {
        for name in [&event.turn.stream.name, &event.turn.key] {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
        }
        hash.update(event.sequence.to_le_bytes());
    }
    hash.finalize().into()
}

impl random::Host for EventRandom {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.bytes(len)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.rng().next_u64())
    }
}

impl insecure::Host for EventRandom {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.bytes(len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.rng().next_u64())
    }
}

impl insecure_seed::Host for EventRandom {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        let stream = self.rng();
        Ok((stream.next_u64(), stream.next_u64()))
    }
}
