//! Certificates for one server, or for all nodes of a Cluster. The certificates are made when the server or the first
//! node starts, so that the repository contains no key.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::find;

/// The configuration of `openssl`. The configuration is complete, so that the settings of the machine have no effect.
/// The certificate of the server is also valid for a client, because each node of a Cluster is a client of the other
/// nodes.
const CONFIG: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = localhost
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
[elsewhere]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:elsewhere
";
/// How long the certificates are valid, in days.
const DAYS: &str = "2";

/// A certificate for `localhost` and 127.0.0.1, and the certificate of the authority that issued it, in PEM.
#[derive(Debug, Clone)]
pub struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("openssl.conf"), CONFIG)?;
        let run = |args: &str| openssl(folder, args);
        for name in ["authority", "server"] {
            run(&format!("ecparam -name prime256v1 -genkey -noout -out {name}.key"))?;
        }
        let config = "-config openssl.conf -sha256";
        run(&format!(
            "req -x509 -new -key authority.key -out authority.pem -days {DAYS} {config} \
             -extensions authority"
        ))?;
        run(&format!("req -new -key server.key -out server.csr {config}"))?;
        let certificates = Self { folder: folder.to_owned() };
        certificates.issue("server.pem", &format!("-days {DAYS} -extensions server"))?;
        Ok(certificates)
    }

    /// Issues another certificate for the server's key into the file `name`, with these options of `openssl x509`.
    /// Without `-extensions`, the certificate names no host. Returns the path of the file.
    pub fn issue(&self, name: &str, options: &str) -> Result<PathBuf> {
        openssl(
            &self.folder,
            &format!(
                "x509 -req -in server.csr -CA authority.pem -CAkey authority.key -set_serial 1 -out {name} -sha256 \
                 {options}{}",
                if options.contains("-extensions") { " -extfile openssl.conf" } else { "" }
            ),
        )
        .context("cannot sign the server's certificate")?;
        Ok(self.folder.join(name))
    }

    /// Returns the path of the authority's certificate, which a client must trust.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("authority.pem")
    }

    /// Returns the path of the authority's private key.
    pub fn authority_key(&self) -> PathBuf {
        self.folder.join("authority.key")
    }

    /// Returns the path of the server's certificate.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("server.pem")
    }

    /// Returns the path of the server's private key.
    pub fn key(&self) -> PathBuf {
        self.folder.join("server.key")
    }
}

fn openssl(folder: &Path, args: &str) -> Result<()> {
    let mut command = Command::new(find("openssl")?);
    let output = command.current_dir(folder).args(args.split(' ')).output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`openssl {args}` failed: {log}");
    Ok(())
}
