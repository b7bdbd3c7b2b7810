//! Tests of the answers to events over HTTP while the store cannot write. Each request must receive an answer, and the
//! answer must name the reason.

use std::fs;
use std::io::Write as _;

use anyhow::{Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{in_turn, text};
use ordain_tests::service::Service;

/// Creates a home whose host accepts events over HTTP. `store` contains the settings of the section `[store]`, and
/// `out` is the path of the sink.
fn home(store: &str, out: &str) -> Result<Home> {
    let config = format!(
        "[ingress]\nlisten = \"127.0.0.1:0\"\n[store]\n{store}\n\
         [streams.cases]\nhandler = \"tally\"\nsource = {{ kind = \"http\" }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"{out}\"\n"
    );
    Home::new(&["tally"], &config)
}

/// The store's folder is moved away while a producer sends a request. The host ends, but must first answer the request
/// with the reason.
#[test]
fn request_in_progress_receives_the_error_of_the_store() -> Result<()> {
    let home = home("kind = \"embedded\"\npath = \"store\"", "out.ndjson")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = http::ingress(&mut service)?;
    let body = text(&in_turn(1, 1));
    let mut request = http::begin_post(address, body.len())?;
    fs::rename(home.path("store"), home.path("moved"))?;
    service.until_says("the store accepts no more requests until Ordain is started again")?;
    request.write_all(body.as_bytes())?;
    let answer = http::receive(request)?;
    // The host answers 500 if the request reaches the store before the listener of the host has been closed.
    ensure!([500, 503].contains(&answer.status), "{answer:?}");
    ensure!(answer.head.contains("\r\nretry-after: "), "{answer:?}");
    ensure!(answer.problem()?.contains("is missing or was replaced"), "{answer:?}");
    let status = service.wait()?;
    ensure!(status.code() == Some(1), "the host ended with {status}: {}", service.stderr());
    Ok(())
}

/// Redis refuses writes, because its memory is full or because it is a replica. The answer must contain the error of
/// Redis. When Redis accepts writes again, the host must accept the same events.
#[test]
fn answer_names_the_error_of_redis() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = home(&format!("kind = \"redis\"\nurl = \"{}\"", redis.url()), "-")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = http::ingress(&mut service)?;
    let body = text(&in_turn(1, 1));
    let memory_limit = |bytes| ["CONFIG", "SET", "maxmemory", bytes];
    for (refuse, accept, reason) in [
        (&memory_limit("1")[..], &memory_limit("0")[..], "OOM command not allowed"),
        (&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"], "READONLY"),
    ] {
        redis.command(refuse)?;
        let answer = http::post(address, http::LINES_TYPE, &body)?;
        redis.command(accept)?;
        ensure!(answer.status == 503, "{answer:?}");
        ensure!(answer.problem()?.contains(reason), "the answer lacks {reason:?}: {answer:?}");
        let answer = http::post(address, http::LINES_TYPE, &body)?;
        ensure!(answer.status == 202, "{answer:?}");
    }
    service.end()
}
