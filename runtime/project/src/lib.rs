//! Projects of handlers: the templates of new projects, scripted tests, and the development loop. This crate runs the
//! handlers of a project in the engine of `ordain run`, and must never decide how an event is settled.
#![deny(
    clippy::print_stderr,
    reason = "a closed standard error must not end the process: use `text::print_lossy`"
)]

mod build_command;
mod create;
mod dev;
mod diff;
mod error;
mod file_watch;
mod printer;
mod record;
mod run_output;
mod sandbox;
mod script;
mod scripted_tests;
mod session;
mod template;

pub use create::{CreatedProject, NewProject, NewProjectError, ProjectOrdering};
pub use dev::{DevRun, EventInput, state_folder};
pub use error::ProjectError;
pub use printer::Printer;
pub use scripted_tests::{TestRun, TestTotals};
pub use template::languages;
