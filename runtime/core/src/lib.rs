//! The sequencer of Ordain: decides, for one partition of a stream, what happens to each event
//! and when. It performs nothing itself: no I/O, no clock, no random source.
pub mod effect;
pub mod event;
pub mod input;
pub mod job;
pub mod letter;
pub mod packed;
pub mod settings;
pub mod turn;
pub use effect::*;
pub use event::*;
pub use input::*;
pub use job::*;
pub use letter::*;
pub use settings::*;
pub use turn::*;
