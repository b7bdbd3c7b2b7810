//! Tests of TLS. The store must refuse a server whose certificate the system does not trust.

use std::process::Command;

use ordain_store::StoreError;
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::Owner;

use super::dedicated::{Server, next_of, step};
use super::support::options;

/// The environment variable that marks the child process. The variable's value is the URL of the server.
const URL: &str = "ORDAIN_TEST_TLS_URL";
/// The environment variable that names a file of certificates. The child trusts them instead of the certificates of the
/// system.
const TRUSTED: &str = "SSL_CERT_FILE";

/// Commits over TLS, or prints the reason why the store does not open. Does nothing in the parent process, where the
/// variable [`URL`] is not set.
#[tokio::test]
async fn child_process() {
    let Ok(url) = std::env::var(URL) else { return };
    match RedisStore::open(options(&url)).await {
        Ok(store) => {
            let mut owner = Owner::claim(&store, "s", 0).await;
            owner.write(&store, step("a", 1)).await;
            println!("answer next {}", next_of(&store, "a").await);
        }
        Err(StoreError::Unusable(words)) => println!("answer refused {words}"),
        Err(other) => panic!("{other:?}"),
    }
}

/// Runs the child process. Returns the line that the child printed.
fn answer(url: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "store_redis::tls::child_process", "--nocapture"])
        .env(URL, url)
        .env_remove(TRUSTED)
        .env_remove("SSL_CERT_DIR")
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
