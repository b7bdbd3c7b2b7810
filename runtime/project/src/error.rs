//! The errors of the commands `dev` and `test`.

use std::io;
use std::path::{Path, PathBuf};

use ordain_config::ConfigError;
use ordain_engine::run::RunError;
use ordain_store::StoreError;
use ordain_wasm::HandlerSetupError;

/// The reason why the handlers of a project cannot be built or run.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A handler cannot be loaded.
    #[error(transparent)]
    Handler(#[from] HandlerSetupError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The build command failed.
    #[error("the build failed ({status}): {command}")]
    Build {
        /// The command.
        command: String,
        /// The end of the command, such as `exit status: 1`.
        status: String,
        /// The output of the command; empty if the command wrote to the terminal.
        output: String,
    },
    /// The folder of handlers has no file of a handler.
    #[error(
        "{} has no {handler}.wasm and no {handler}@VERSION.wasm: build the handler, or set `build` in the section \
         [dev]",
        dir.display()
    )]
    MissingHandler {
        /// The name of the handler.
        handler: String,
        /// The folder of handlers.
        dir: PathBuf,
    },
    /// A scripted test is invalid.
    #[error("{}:{line}: {message}", path.display())]
    Script {
        /// The file.
        path: PathBuf,
        /// The line of the file, beginning with 1.
        line: usize,
        /// The fault, and the valid form.
        message: String,
    },
    /// The project has no scripted tests.
    #[error("no scripted test: {} has no file whose name ends with .ndjson", .0.display())]
    NoTests(PathBuf),
    /// Another process uses the folder of temporary files.
    #[error("another process (the command dev or test) uses the folder {}: end it first", .0.display())]
    InUse(PathBuf),
    /// A file or folder cannot be read, written or watched.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The changes of files cannot be watched.
    #[error("files cannot be watched: {0}")]
    Watch(#[from] notify::Error),
    /// Standard output cannot be written, or standard input cannot be read.
    #[error(transparent)]
    Stdio(#[from] io::Error),
}

impl From<StoreError> for ProjectError {
    fn from(error: StoreError) -> Self {
        Self::Run(error.into())
    }
}

/// Returns a function that adds a path to an error.
pub(crate) fn of_file(path: &Path) -> impl FnOnce(io::Error) -> ProjectError + '_ {
    |source| ProjectError::File { path: path.to_owned(), source }
}
