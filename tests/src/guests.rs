//! Handlers (guests) that are written in the WebAssembly text format, for behaviour that no compiler generates.
//! `build.rs` builds them from the files in `guests/`.

use std::path::Path;

use anyhow::{Context, Result};

/// Returns the component of a guest. If `name` ends with `-utf16`, the strings of the guest are in UTF-16. If `name`
/// ends with `-core`, returns the core module of the guest instead.
pub fn guest(name: &str) -> Result<Vec<u8>> {
    let file = Path::new(env!("OUT_DIR")).join(format!("{name}.wasm"));
    std::fs::read(&file).with_context(|| format!("guest {name} does not exist"))
}

/// The smallest component. It imports and exports nothing.
pub const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

/// Returns a component that imports, under this name, an instance without exports (in the sense of the component
/// model), and imports nothing else.
pub fn importing(name: &str) -> Vec<u8> {
    let length = u8::try_from(name.len()).expect("a name of a test is short");
    let mut wasm = EMPTY.to_vec();
    // Section 7 contains one type: the type of an instance without exports.
    wasm.extend([7, 3, 1, 0x42, 0]);
    // Section 10 contains one import. The import has the name `name`, and is an instance of the type with the index 0.
    wasm.extend([10, length + 5, 1, 0, length]);
    wasm.extend(name.as_bytes());
    wasm.extend([5, 0]);
    wasm
}

/// Event data for the guests `puppet` and `memories`: pairs of numbers. Each guest documents the meaning of the pairs.
#[derive(Debug, Clone, Default)]
pub struct Pairs(Vec<u8>);

impl Pairs {
    /// Makes data without pairs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair of two numbers, each as four bytes in little-endian order.
    #[must_use]
    pub fn pair(mut self, first: u32, second: u32) -> Self {
        self.0.extend(first.to_le_bytes());
        self.0.extend(second.to_le_bytes());
        self
    }

    /// Adds two pairs for the guest `puppet`. The pairs write the start of a list or a string to the address `at`, and
    /// the length to the address `at + 4`.
    #[must_use]
    pub fn list(self, at: u32, start: u32, length: u32) -> Self {
        self.pair(at, start).pair(at + 4, length)
    }

    /// Returns the bytes of all pairs, in the order in which they were added.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The offsets of the parts of an outcome that the guest `puppet` returns.
pub mod outcome {
    /// The change of the state: 0 to keep it, 1 to replace it, 2 to delete it.
    pub const STATE: u32 = 8;
    /// Start and length of the new state.
    pub const STATE_DATA: u32 = 12;
    /// Start and length of the messages.
    pub const MESSAGES: u32 = 20;
}

/// The offsets of the parts of a message, from the start of the message.
pub mod message {
    /// The size of a message, in bytes.
    pub const SIZE: u32 = 80;
    /// Start and length of the sink's name.
    pub const SINK: u32 = 0;
    /// Start and length of the type.
    pub const KIND: u32 = 20;
    /// Start and length of the headers.
    pub const HEADERS: u32 = 36;
    /// Start and length of the data.
    pub const DATA: u32 = 44;
}
