//! Tests of commands that read from a running process, for example with `--admin URL`. Such a command must print the
//! same output as a command that reads from the store.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::ready;
use ordain_tests::service::Service;
use serde_json::json;

use super::support::{ODD_KEY, at_rest, home};

const TOKEN: &str = "0123456789abcdef-secret";

/// Runs a command with a token. The command must exit with `code` and print `words` to standard error, and must not
/// print the token there.
fn refused(home: &Home, args: &[&str], token: &str, code: i32, words: &str) -> Result<()> {
    let output = home.ordain(args)?.env("ORDAIN_TOKEN", token).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let right = output.status.code() == Some(code) && stderr.contains(words);
    ensure!(right, "{args:?}: {}: {stderr}\nnot: {words}", output.status);
    ensure!(token.is_empty() || !stderr.contains(token), "the token is disclosed: {stderr}");
    Ok(())
}

#[test]
fn running_process_shows_the_data_of_its_store() -> Result<()> {
    let home = home()?;
    let (mut service, address) = at_rest(&home)?;
    let url = format!("http://{address}");
    let letters = home.rows(&["dead", "list", "cases", "--json", "--admin", &url])?;
    let id = letters
        .iter()
        .find(|letter| letter["key"] == "rejected")
        .and_then(|letter| letter["id"].as_str());
    let show = ["dead", "show", "cases", id.unwrap_or_default(), "--key", "rejected"];
    let commands: [&[&str]; 12] = [
        &["keys", "list", "cases"],
        &["keys", "list", "cases", "--json"],
        &["keys", "list", "cases", "--limit", "7", "--prefix", "k"],
        &["keys", "list", "cases", "--status", "parked"],
        &["keys", "show", "cases", ODD_KEY],
        &["keys", "show", "cases", ODD_KEY, "--json"],
        &["keys", "why", "cases", "gap"],
        &["keys", "why", "cases", "trap"],
        &["keys", "why", "cases", "k0"],
        &["dead", "list", "cases"],
        &["dead", "list", "cases", "--json", "--key", "rejected"],
        &show,
    ];
    let remote: Result<Vec<String>> = commands
        .iter()
        .map(|command| home.printed(&[command, &["--admin", &url][..]].concat()))
        .collect();
    let remote = remote?;
    let plugins = home.printed(&["plugins", "list", "--admin", &url])?;
    let runs = |line: &str| line.starts_with("faulty+") && line.matches(" cases ").count() == 2;
    ensure!(plugins.lines().any(runs), "{plugins}");
    let why = ["keys", "why", "cases", "rejected"];
    let hint = home.printed(&[&why[..], &["--admin", &url]].concat())?;
    ensure!(hint.contains(&format!("--key=rejected --admin {url}`")), "{hint}");
    // Without the option, a command finds the process that has the store open.
    for (command, remote) in commands.iter().zip(&remote) {
        assert_eq!(*remote, home.printed(command)?, "{command:?}");
    }
    service.end()?;
    for (command, remote) in commands.iter().zip(remote) {
        assert_eq!(remote, home.printed(command)?, "{command:?}");
    }
    let here = home.printed(&["plugins", "list"])?;
    assert_eq!(
        here.replace(" ?     ", " cases "),
        plugins,
        "without a process, `plugins list` does not know which streams run a handler"
    );
    let hint_here = home.printed(&why)?;
    assert_eq!(hint.replace(&format!(" --admin {url}"), ""), hint_here);
    Ok(())
}

/// The lock file of an embedded store names the process that has the store open. A command must find this process at
/// each kind of address.
#[test]
fn commands_find_the_process_that_has_the_store_open() -> Result<()> {
    for admin in [
        "listen = \"127.0.0.1:0\"".to_owned(),
        "listen = \"[::1]:0\"".to_owned(),
        format!("listen = \"127.0.0.1:0\"\ntoken = \"{TOKEN}\""),
        format!("listen = \"0.0.0.0:0\"\ntoken = \"{TOKEN}\""),
    ] {
        let home = home()?;
        let config = home.read("ordain.toml");
        let (config, _) = config.split_once("[admin]").context("a listener")?;
        home.write("ordain.toml", format!("{config}[admin]\n{admin}\n"))?;
        let mut service = Service::start(&home, &["run"])?;
        service.until("the records of all keys", || home.lines("out.ndjson") == 200)?;
        let streams = home.printed(&["streams", "list"])?;
        ensure!(streams.contains(" yes "), "{streams}");
        let instances = home.printed(&["instances"])?;
        let row = instances.lines().nth(1).context("an instance")?;
        ensure!(
            row.contains(&format!("/{} ", service.id())) && row.contains(" runs "),
            "{instances}"
        );
        let why = home.printed(&["keys", "why", "cases", "gap"])?;
        ensure!(why.starts_with("key gap: "), "{why}");
        let wrong = ["dead", "list", "cases"];
        if admin.contains("token") {
            refused(&home, &wrong, "another-token-of-a-process", 1, "rejects the token")?;
        }
        service.kill()?;
        // The lock file still names the dead process, but no process has the store open.
        let keys = home.printed(&["keys", "list", "cases"])?;
        ensure!(keys.contains("\nk0 "), "{keys}");
    }
    Ok(())
}

/// The process that has the store open can run in another network namespace than the command. In the namespace of the
/// command, the URL in the lock file can belong to another process, so the command must not use the URL. A lock file
/// that an earlier version of Ordain wrote names no namespace. With such a lock file, the command must use the URL.
#[test]
fn process_in_another_network_namespace_is_not_contacted() -> Result<()> {
    const LOCK: &str = "ordain-data/lock";
    let home = home()?;
    let (mut service, address) = at_rest(&home)?;
    let url = format!("http://{address}");
    let lock = home.read(LOCK);
    let (earlier, network) = lock.trim_end().rsplit_once('\n').context("a network")?;
    ensure!(network.contains(" net:["), "{lock}");
    let elsewhere = format!("{earlier}\n{network}1\n");
    home.write(LOCK, &elsewhere)?;
    let holder = format!("process {} has the store in ordain-data open on another", service.id());
    for command in [
        &["streams", "list"][..],
        &["instances"],
        &["keys", "list", "cases"],
        &["keys", "why", "cases", "gap"],
        &["dead", "list", "cases"],
    ] {
        refused(&home, command, "", 75, &holder)?;
        home.printed(&[command, &["--admin", &url]].concat())?;
    }
    for known in [format!("{earlier}\n"), lock] {
        home.write(LOCK, known)?;
        let streams = home.printed(&["streams", "list"])?;
        ensure!(streams.contains(" yes "), "{streams}");
    }
    service.end()?;
    // When the process has ended, the content of the lock file does not matter.
    home.write(LOCK, &elsewhere)?;
    home.printed(&["keys", "list", "cases"])?;
    Ok(())
}

#[test]
fn unusable_url_is_reported_with_its_remedy() -> Result<()> {
    let home = home()?;
    let list = ["keys", "list", "cases", "--admin"];
    let of = |url: &'static str| [&list[..], &[url]].concat();
    for url in ["127.0.0.1:7070", "odd", "ftp://localhost", ""] {
        refused(&home, &of(url), "", 2, "such as http://127.0.0.1:7070")?;
    }
    let both = ["keys", "list", "cases", "--config", "ordain.toml", "--admin", "http://localhost"];
    refused(&home, &both, "", 2, "cannot be used with")?;

    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let unused = format!("http://{free}");
    for command in
        [&["keys", "list", "cases"][..], &["plugins", "list"], &["dead", "list", "cases"]]
    {
        let args = [command, &["--admin", &unused]].concat();
        refused(&home, &args, "", 75, "no process responds at http://127.0.0.1:")?;
    }
    Ok(())
}

#[test]
fn error_response_of_the_process_is_reported() -> Result<()> {
    let home = home()?;
    let config = home.read("ordain.toml");
    home.write("ordain.toml", format!("{config}token = \"{TOKEN}\"\n"))?;
    let mut service = Service::start(&home, &["run"])?;
    let url = format!("http://{}", ready(&mut service)?);
    let list = ["keys", "list", "cases", "--admin", &url];
    refused(
        &home,
        &list,
        "",
        1,
        "requires a token: set ORDAIN_TOKEN to the `token` in the section [admin]",
    )?;
    refused(
        &home,
        &list,
        "another-secret-token",
        1,
        "rejects the token of this command: set ORDAIN_TOKEN",
    )?;
    refused(&home, &list, "strange\nsecret", 1, "check ORDAIN_TOKEN for invalid characters")?;
    for (args, words) in [
        (&["keys", "list", "odd"][..], "there is no stream \"odd\"; existing streams: cases"),
        (&["keys", "show", "cases", "absent"], "key \"absent\" of stream cases was never"),
        (&["keys", "why", "cases", "absent"], "key \"absent\" of stream cases was never"),
        (&["dead", "list", "odd"], "there is no stream \"odd\""),
        (&["dead", "show", "cases", "1-1"], "has no dead letter 1-1"),
    ] {
        refused(&home, &[args, &["--admin", &url]].concat(), TOKEN, 1, words)?;
    }
    let odd = ["dead", "show", "cases", "odd", "--admin", &url];
    refused(&home, &odd, TOKEN, 2, "like 3-b05cb4f9ec0b9b83")
}

#[test]
fn server_of_another_program_is_recognized() -> Result<()> {
    let home = home()?;
    for (answer, found) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\n<ht>", "it responded with status 404"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ht>", "it responded with status 200"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "its response has no valid `keys`"),
        (
            "HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
            "it responded with status 302",
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n", "is not an admin listener of this version of Ordain"),
    ] {
        let other = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", other.local_addr()?);
        let served = std::thread::spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = other.accept()?;
            let _ = stream.read(&mut [0; 4_096])?;
            stream.write_all(answer.as_bytes())
        });
        refused(&home, &["keys", "list", "cases", "--admin", &url], "", 1, found)?;
        served.join().map_err(|_| anyhow::anyhow!("the other server panicked"))??;
    }
    Ok(())
}

/// The number of connections that the server of [`foreign_server`] accepts. After these connections, the server closes
/// its port, so a command that sends more requests fails.
const CONNECTIONS: usize = 200;

/// Starts a server that does not belong to Ordain. `answer` writes the answer to each request. Returns the URL of the
/// server.
fn foreign_server(
    answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + 'static,
) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().take(CONNECTIONS) {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4_096];
            let length = stream.read(&mut request).unwrap_or(0);
            // The server ignores errors, because the client may close the connection early. The tests check how the
            // client handles the answer.
            let _ = answer(&String::from_utf8_lossy(&request[..length]), &mut stream);
        }
    });
    Ok(url)
}

/// Starts a server that answers each request with a JSON body. Returns the URL of the server.
fn foreign_server_with(body: impl Fn(&str) -> String + Send + 'static) -> Result<String> {
    foreign_server(move |request, stream| {
        let body = body(request);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", body.len());
        stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes())
    })
}

#[test]
fn control_characters_of_another_server_are_escaped() -> Result<()> {
    const EVIL: &str = "\x1b]0;x\x07\u{9b}2J\u{202e}\r\nnext";
    let home = home()?;
    let url = foreign_server_with(|request| {
        let trouble = json!({ "cause": EVIL, "error": EVIL, "since": EVIL, "version": EVIL });
        let key = json!({
            "key": EVIL, "status": EVIL, "next": 1, "trouble": trouble, "due_at": EVIL,
            "state": EVIL,
        });
        let letter = json!({
            "id": EVIL, "key": EVIL, "cause": EVIL, "error": EVIL, "origin": EVIL, "raw": EVIL,
        });
        let handler = json!({
            "handler": EVIL, "state": EVIL, "streams": [EVIL], "running": [EVIL], "path": EVIL,
            "reason": EVIL,
        });
        let body = match request {
            head if head.starts_with("GET /v1/streams/cases/keys/") => key,
            head if head.starts_with("GET /v1/streams/cases/keys") => json!({ "keys": [key] }),
            head if head.starts_with("GET /v1/streams") => {
                json!({ "streams": [{ "stream": EVIL }] })
            }
            head if head.starts_with("GET /v1/dead") => json!({ "dead": [letter] }),
            _ => json!({ "handlers": [handler], "refused": [{ "path": EVIL, "reason": EVIL }] }),
        };
        body.to_string()
    })?;
    // The commands, each with the number of lines that it must print. A command that does not escape the line break in
    // the server's data prints more lines.
    let commands: [(&[&str], usize); 10] = [
        (&["keys", "list", "cases"], 2),
        (&["keys", "list", "cases", "--json"], 1),
        (&["keys", "show", "cases", "k"], 13),
        (&["keys", "show", "cases", "k", "--json"], 1),
        // The second line of the reason is indented, so it cannot look like another part of the report.
        (&["keys", "why", "cases", "k"], 5),
        (&["dead", "list", "cases"], 2),
        (&["dead", "list", "cases", "--json"], 1),
        (&["dead", "show", "cases", "1-1"], 8),
        (&["plugins", "list"], 3),
        (&["plugins", "list", "--json"], 1),
    ];
    for (command, lines) in commands {
        let shown = home.printed(&[command, &["--admin", &url]].concat())?;
        let steers = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        ensure!(!shown.contains(steers), "{command:?}: {shown:?}");
        ensure!(
            shown.contains("\\u001b]0;x") && shown.lines().count() == lines,
            "{command:?}: {shown}"
        );
        ensure!(!shown.lines().any(|line| line == "next"), "{command:?}: {shown}");
    }
    Ok(())
}

#[test]
fn listing_whose_cursor_does_not_advance_is_an_error() -> Result<()> {
    let home = home()?;
    for list in ["keys", "dead"] {
        let page = json!({ list: [], "cursor": "k1:x" }).to_string();
        let url = foreign_server_with(move |_| page.clone())?;
        let args = [list, "list", "cases", "--admin", &url];
        refused(&home, &args, "", 1, "the cursor of a page leads to the same page again")?;
    }
    Ok(())
}

#[test]
fn endless_response_is_an_error() -> Result<()> {
    let home = home()?;
    let url = foreign_server(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
        let part = vec![b'['; 64 << 10];
        loop {
            stream.write_all(&part)?;
        }
    })?;
    let args = ["keys", "list", "cases", "--admin", &url];
    refused(&home, &args, "", 1, "its response has more than 128 MiB")
}

#[test]
fn deeply_nested_data_is_shown() -> Result<()> {
    let home = home()?;
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let page =
        format!("{{\"dead\":[{{\"key\":\"k\",\"id\":\"1-1\",\"event\":{{\"data\":{deep}}}}}]}}");
    let url = foreign_server_with(move |_| page.clone())?;
    let list = home.printed(&["dead", "list", "cases", "--admin", &url])?;
    ensure!(list.lines().nth(1).is_some_and(|row| row.starts_with("k  ")), "{list}");
    for command in [&["dead", "list", "cases", "--json"][..], &["dead", "show", "cases", "1-1"]] {
        let shown = home.printed(&[command, &["--admin", &url]].concat())?;
        ensure!(shown.contains(&deep), "{} bytes", shown.len());
    }
    Ok(())
}
