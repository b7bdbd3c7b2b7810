//! Tests of the sequencer with times that are too long, and gaps that are too wide, for the simulation.

mod beginning;
mod early_letters;
mod passed_letters;
mod repeats;
mod replay;
mod rig;
mod skip;
mod stored_keys;
