//! Tests of TLS. The store must refuse a server whose certificate the system does not trust.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use ordain_servers::{Cluster, Takeover};
use ordain_store::{RedisOptions, Store as _, StoreError};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::Owner;

use super::dedicated::{Server, next_of, step, until_applied};
use super::support::{keys_of_shards, options};

/// The environment variable that marks the child process. The variable's value is the URL of the server.
const URL: &str = "ORDAIN_TEST_TLS_URL";
/// The environment variable that marks the child process of the test with a Cluster. The variable's value is the URL of
/// a node.
const CLUSTER_URL: &str = "ORDAIN_TEST_TLS_CLUSTER_URL";
/// The environment variable that names a file of certificates. The child process trusts these certificates instead of
/// the certificates of the system.
const TRUSTED: &str = "SSL_CERT_FILE";

/// Commits over TLS, or prints the reason why the store does not open. Does nothing in the parent process, where the
/// variable [`URL`] is not set.
#[tokio::test]
async fn commits_over_tls() {
    let Ok(url) = std::env::var(URL) else { return };
    let options = RedisOptions { retry_timeout: Some(Duration::ZERO), ..options(&url) };
    match RedisStore::open(options).await {
        Ok(store) => {
            let mut owner = Owner::claim(&store, "s", 0).await;
            owner.write(&store, step("a", 1)).await;
            println!("answer next {}", next_of(&store, "a").await);
        }
        Err(StoreError::Unavailable(words)) => println!("answer refused {words}"),
        Err(other) => panic!("{other:?}"),
    }
}

/// Returns the command that runs one test of this module in a child process. By default, the child trusts the
/// certificates of the system.
fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", &format!("store_redis::tls::{test}"), "--nocapture"]);
    command.env_remove(TRUSTED).env_remove("SSL_CERT_DIR");
    command
}

/// Runs the child process. Returns the line that the child printed.
fn answer(url: &str, variables: &[(&str, &str)]) -> String {
    let output = child("commits_over_tls")
        .env(URL, url)
        .envs(variables.iter().copied())
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{words}");
    let answer = text.split_once("answer ").unwrap_or_else(|| panic!("{text}\n{words}"));
    answer.1.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn only_trusted_server_is_used() {
    let tls = ordain_servers::Options::new().password("secret").tls();
    let server = Server::with(&tls).expect("a server");
    let (_, certificates) = server.tls().expect("a server with TLS");
    let authority = certificates.authority().display().to_string();
    let trusting = [(TRUSTED, authority.as_str())];
    assert_eq!(answer(&server.url(), &trusting), "next 2");
    assert_eq!(server.command(&["EXISTS", "test-0:{0}:store"]).expect("an answer").int(), Some(1));

    let refused = answer(&server.url(), &[]);
    assert!(refused.starts_with("refused ") && refused.contains("certificate"), "{refused}");
    assert!(refused.contains(TRUSTED), "{refused}");
}

/// An operator can replace a certificate that a client refuses, so the refusal is temporary. The advice about trusted
/// authorities must appear only if the authority is the reason.
#[test]
fn each_refused_certificate_is_explained() {
    let tls = ordain_servers::Options::new().password("secret").tls();
    let server = Server::with(&tls).expect("a server");
    let (_, certificates) = server.tls().expect("a server with TLS");
    let authority = certificates.authority().display().to_string();
    for (name, options, words) in [
        ("expired.pem", "-days 0 -extensions server", &["xpired"][..]),
        ("elsewhere.pem", "-days 2 -extensions elsewhere", &["elsewhere"]),
        // Since OpenSSL 3.4, a certificate without extensions has version 3, and not version 1.
        ("nameless.pem", "-days 2", &["version 3", "not valid for any names"]),
    ] {
        let certificate = certificates.issue(name, options).expect("a certificate");
        // A certificate for 0 days expires after the present second.
        std::thread::sleep(Duration::from_secs(1));
        server.configure("tls-cert-file", &certificate.display().to_string()).expect("a setting");
        let refused = answer(&server.url(), &[(TRUSTED, &authority)]);
        let is_explained = words.iter().any(|words| refused.contains(words));
        assert!(refused.starts_with("refused ") && is_explained, "{name}: {refused}");
        assert!(!refused.contains(TRUSTED) && !refused.contains("secret"), "{name}: {refused}");
    }
    let keys = [certificates.key(), certificates.authority_key()];
    let [key, authority_key] = keys.map(|path| path.display().to_string());
    let set = |certificate: &str, key: &str| {
        let command = ["CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key];
        server.command(&command).expect("settings");
    };
    set(&authority, &authority_key);
    let refused = answer(&server.url(), &[(TRUSTED, &authority)]);
    assert!(refused.contains("CA certificate cannot be a server's own"), "{refused}");
    let certificate = certificates.certificate().display().to_string();
    set(&certificate, &key);
    server.configure("tls-auth-clients", "yes").expect("a setting");
    let refused = answer(&server.url(), &[(TRUSTED, &authority)]);
    assert!(refused.contains("set tls-auth-clients no"), "{refused}");
    server.configure("tls-auth-clients", "no").expect("a setting");
    assert_eq!(answer(&server.url(), &[(TRUSTED, &authority)]), "next 2");
}

/// If only one of client and server uses TLS, the error must name the scheme that fits the server.
#[test]
fn wrong_scheme_is_explained() {
    let plain = Server::start(&[]).expect("a server");
    let refused = answer(&plain.url().replacen("redis://", "rediss://", 1), &[]);
    assert!(
        refused.starts_with("refused ") && refused.ends_with("If not, use redis://"),
        "{refused}"
    );

    let tls = Server::with(&ordain_servers::Options::new().tls()).expect("a server");
    let refused = answer(&tls.url().replacen("rediss://", "redis://", 1), &[]);
    assert!(refused.starts_with("refused ") && refused.ends_with("use rediss://"), "{refused}");
}

/// For each line of the standard input, commits one event in each shard of a Cluster, and then prints the number of the
/// line. Does nothing in the parent process, where the variable [`CLUSTER_URL`] is not set.
#[tokio::test]
async fn commits_in_cluster_over_tls() {
    let Ok(url) = std::env::var(CLUSTER_URL) else { return };
    let store = RedisStore::open(options(&url)).await.expect("the store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    for (number, line) in (1..).zip(std::io::stdin().lines()) {
        line.expect("a line");
        for key in keys_of_shards(store.shards()) {
            let batch = owner.batch(vec![step(&key, number)]);
            until_applied(&store, &owner, &batch).await;
        }
        println!("answer {number}");
    }
}

struct ClusterChild {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl ClusterChild {
    /// Starts the child, which trusts the authority of a node's certificate.
    fn start(node: &Server) -> Self {
        let (_, certificates) = node.tls().expect("a node with TLS");
        let mut process = child("commits_in_cluster_over_tls")
            .env(CLUSTER_URL, node.url())
            .env(TRUSTED, certificates.authority())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let input = process.stdin.take().expect("the input");
        let output = BufReader::new(process.stdout.take().expect("the output")).lines();
        Self { process, input, output }
    }

    /// Waits until the child has committed event `number` of each shard.
    fn commit(&mut self, number: u64) {
        writeln!(self.input).expect("a running child");
        let answer = format!("answer {number}");
        let is_answer =
            |line: std::io::Result<String>| line.is_ok_and(|line| line.ends_with(&answer));
        assert!(self.output.any(is_answer), "the child has ended");
    }

    /// Ends the child, which must not have failed.
    fn finish(mut self) {
        drop(self.input);
        assert!(self.process.wait().expect("the end of the child").success());
    }
}

/// The nodes of a Cluster report their ports for TLS to a client that uses TLS. The store must follow a slot that moves
/// to another node, and a takeover by a replica.
#[test]
fn cluster_is_used_over_tls() {
    let mut cluster = Cluster::with(3, &ordain_servers::Options::new().tls()).expect("a Cluster");
    cluster.add_replicas().expect("replicas");
    let mut child = ClusterChild::start(&cluster.nodes()[0]);
    child.commit(1);
    let slots = ["{0}", "{1}"].map(|tag| cluster.slot(tag).expect("a slot"));
    let [from, other] = slots.map(|slot| cluster.owner(slot).expect("an owner"));
    assert_ne!(from, other, "the first two shards have different nodes");
    let migration = cluster.migrate(slots[0], 3 - from - other).expect("a migration");
    migration.finish().expect("an end");
    child.commit(2);
    cluster.let_replica_lag(other).expect("a replica in step");
    cluster.take_over(other, Takeover::Takeover).expect("another master");
    child.commit(3);
    child.finish();
}
