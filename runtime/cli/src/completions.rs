//! `ordain completions`: prints the completions of the command line for a shell, or the manual page.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::{Shell, generate};

use crate::cli::{CommandError, OrdainCli};

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell, or `man` for the manual page.
    #[arg(value_name = "SHELL")]
    format: CompletionsFormat,
}

/// The format of the printed description of the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum CompletionsFormat {
    Bash,
    Fish,
    Zsh,
    Man,
}

impl CompletionsArgs {
    pub(crate) fn run(&self) -> Result<ExitCode, CommandError> {
        let mut command = OrdainCli::command();
        let mut text = Vec::new();
        match self.format {
            CompletionsFormat::Bash => generate(Shell::Bash, &mut command, "ordain", &mut text),
            CompletionsFormat::Fish => generate(Shell::Fish, &mut command, "ordain", &mut text),
            CompletionsFormat::Zsh => generate(Shell::Zsh, &mut command, "ordain", &mut text),
            CompletionsFormat::Man => clap_mangen::Man::new(command).render(&mut text)?,
        }
        io::stdout().write_all(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
