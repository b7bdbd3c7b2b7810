//! A name that a test resolves: a library in front of libc (`names.c`) answers the host's questions for the name.

use anyhow::Result;

use crate::host::Home;
use ordain_servers::compile_preload;

/// The address at which the servers of tests listen by default.
pub const FIRST_ADDRESS: &str = "127.0.0.1";
/// The source of the library.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/names.c");
/// The file with the address of the name.
const FILE: &str = "address";

/// A name that a test resolves.
pub struct Name(pub &'static str);

impl Name {
    /// Resolves the name to [`FIRST_ADDRESS`] for a host in this home. Returns the program that starts the host with
    /// the library, for [`Service::start_by`](crate::service::Service::start_by).
    pub fn prepare(&self, home: &Home) -> Result<Vec<String>> {
        let library = home.path("names.so");
        compile_preload(SOURCE, &library)?;
        self.resolve(home, Some(FIRST_ADDRESS))?;
        Ok(vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", library.display()),
            format!("ORDAIN_NAME={}", self.0),
            format!("ORDAIN_NAME_FILE={}", home.path(FILE).display()),
        ])
    }

    /// Resolves the name to an address or to nothing.
    pub fn resolve(&self, home: &Home, to: Option<&str>) -> Result<()> {
        home.replace(FILE, to.unwrap_or_default())
    }
}
