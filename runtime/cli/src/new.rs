//! `ordain new`: creates a project from a template.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::CommandError;
use crate::show;
use ordain_project::{NewProject, NewProjectError, ProjectOrdering, languages};
use ordain_util::text::{print_lossy, shell_quoted};

/// Exit code of a command with an invalid argument, as for the arguments that the command line itself rejects.
const EXIT_USAGE: u8 = 2;

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// The folder of the project: a new or an empty folder. The last part of the path is the name of the project.
    folder: PathBuf,
    /// The language of the handler.
    #[arg(long, value_parser = PossibleValuesParser::new(languages()))]
    lang: String,
    /// How the events of a key get their numbers: from their producer, or from Ordain in the order of delivery.
    #[arg(long, value_enum, default_value_t = OrderingArg::Sequenced)]
    ordering: OrderingArg,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OrderingArg {
    /// The events have numbers.
    Sequenced,
    /// Ordain numbers the events.
    Fifo,
}

impl NewArgs {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        let Self { folder, lang, ordering, json } = self;
        let ordering = match ordering {
            OrderingArg::Sequenced => ProjectOrdering::Sequenced,
            OrderingArg::Fifo => ProjectOrdering::Fifo,
        };
        let created = match (NewProject { language: &lang, folder: &folder, ordering }).create() {
            Ok(created) => created,
            Err(error @ NewProjectError::Io { .. }) => {
                return Err(CommandError::Failed(error.into()));
            }
            Err(error) => {
                print_lossy(&format!("error: {error}"));
                return Ok(ExitCode::from(EXIT_USAGE));
            }
        };
        let enter = format!("cd {}", shell_quoted(&folder.display().to_string()));
        if json {
            let created = json!({
                "name": created.name,
                "folder": folder.display().to_string(),
                "files": created.files,
                "commands": created.commands,
            });
            show::json(&created, true)?;
            return Ok(ExitCode::SUCCESS);
        }
        let files = created.files.len();
        let mut text = format!("created {} with {files} files and the SDK\n\n", folder.display());
        text += &format!("  {enter}\n");
        for command in created.commands {
            text += &format!("  {command}\n");
        }
        show::text(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
