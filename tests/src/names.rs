//! A host name whose address a test sets. A library (`names.c`), which the host (the program `ordain`) loads before
//! libc, resolves the name.

use anyhow::Result;

use crate::host::Home;
use ordain_servers::compile_preload;

/// The address to which a name resolves first. The servers of tests listen at this address.
pub const FIRST_ADDRESS: &str = "127.0.0.1";
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/names.c");
/// The file in the home that contains the address to which the name resolves.
const FILE: &str = "address";

/// A host name whose address a test sets.
pub struct Name(pub &'static str);

impl Name {
    /// Builds the library that replaces the name resolution of a host, and makes the name resolve to [`FIRST_ADDRESS`]
    /// for a host in this home. Returns the program that starts the host with this library, and the arguments of the
    /// program, for [`Service::start_by`](crate::service::Service::start_by).
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

    /// Sets the address to which the name resolves. `None` makes the resolution fail.
    pub fn resolve(&self, home: &Home, to: Option<&str>) -> Result<()> {
        home.replace(FILE, to.unwrap_or_default())
    }
}
