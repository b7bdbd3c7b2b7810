//! TLS: the server's certificate is checked against what the system trusts.

use std::process::Command;

use ordain_store::StoreError;
use ordain_store_redis::Redis;
use ordain_tests::conformance::Owner;

use super::own::{Server, next_of, step};
use super::support::options;

/// Tells the child what to do: the server's URL.
const URL: &str = "ORDAIN_TEST_TLS_URL";
/// What the child trusts in place of the system's certificates.
const TRUSTED: &str = "SSL_CERT_FILE";

/// Commits over TLS, or says why not. Does nothing unless it is the child.
#[tokio::test]
async fn child() {
    let Ok(url) = std::env::var(URL) else { return };
    match Redis::open(options(&url)).await {
        Ok(store) => {
            let mut owner = Owner::claim(&store, "s", 0).await;
            owner.write(&store, step("a", 1)).await;
            println!("answer next {}", next_of(&store, "a").await);
        }
        Err(StoreError::Unusable(words)) => println!("answer refused {words}"),
        Err(other) => panic!("{other:?}"),
    }
}

/// What the child says.
fn answer(url: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "store_redis::tls::child", "--nocapture"])
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
fn a_trusted_server_is_used_and_another_is_refused() {
    let tls = ordain_servers::Options::new().password("secret").tls();
    let server = Server::with(&tls).expect("a server");
    let (_, certificates) = server.tls().expect("it speaks TLS");
    let authority = certificates.authority().display().to_string();
    let trusting = [(TRUSTED, authority.as_str())];
    assert_eq!(answer(&server.url(), &trusting), "next 2");
    assert_eq!(server.command(&["EXISTS", "test-0:{0}:store"]).expect("an answer").int(), Some(1));

    let refused = answer(&server.url(), &[]);
    assert!(refused.starts_with("refused ") && refused.contains("certificate"), "{refused}");
    assert!(refused.contains(TRUSTED), "{refused}");
}
