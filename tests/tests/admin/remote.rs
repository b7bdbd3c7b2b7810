//! `--admin URL`: commands that look at a running process show what they show of its store.

use std::io::{Read, Write};
use std::net::TcpListener;

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::ready;
use ordain_tests::service::Service;

use crate::support::{ODD, at_rest, home};

const TOKEN: &str = "0123456789abcdef-secret";

/// What a command prints; it must succeed.
fn printed(home: &Home, args: &[&str]) -> Result<String> {
    let output = home.output(args)?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{args:?}: {}: {told}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a command, which must end with the code and tell the words.
fn refused(home: &Home, args: &[&str], token: &str, code: i32, words: &str) -> Result<()> {
    let output = home.ordain(args)?.env("ORDAIN_TOKEN", token).output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    let right = output.status.code() == Some(code) && told.contains(words);
    ensure!(right, "{args:?}: {}: {told}\nnot: {words}", output.status);
    ensure!(token.is_empty() || !told.contains(token), "the token is told: {told}");
    Ok(())
}

#[test]
fn a_running_process_shows_what_its_store_holds() -> Result<()> {
    let home = home()?;
    let (mut service, address) = at_rest(&home)?;
    let url = format!("http://{address}");
    let letters = home.rows(&["dead", "list", "cases", "--json", "--admin", &url])?;
    let id = letters.iter().find(|it| it["key"] == "rejected").and_then(|it| it["id"].as_str());
    let show = ["dead", "show", "cases", id.unwrap_or_default(), "--key", "rejected"];
    let looks: [&[&str]; 14] = [
        &["keys", "list", "cases"],
        &["keys", "list", "cases", "--json"],
        &["keys", "list", "cases", "--limit", "7", "--prefix", "k"],
        &["keys", "list", "cases", "--status", "parked"],
        &["keys", "show", "cases", ODD],
        &["keys", "show", "cases", ODD, "--json"],
        &["keys", "why", "cases", "gap"],
        &["keys", "why", "cases", "trap"],
        &["keys", "why", "cases", "k0"],
        &["dead", "list", "cases"],
        &["dead", "list", "cases", "--json", "--key", "rejected"],
        &show,
        &["plugins", "list"],
        &["plugins", "list", "--json"],
    ];
    let asked: Result<Vec<String>> =
        looks.iter().map(|look| printed(&home, &[look, &["--admin", &url][..]].concat())).collect();
    let asked = asked?;
    let why = ["keys", "why", "cases", "rejected"];
    let hint = printed(&home, &[&why[..], &["--admin", &url]].concat())?;
    ensure!(hint.contains(&format!("--key rejected --admin {url}`")), "{hint}");
    refused(&home, looks[0], "", 75, "Or ask the process that has it: --admin URL")?;
    service.signal("TERM")?;
    ensure!(service.wait()?.success(), "{}", service.stderr());
    for (look, asked) in looks.iter().zip(asked) {
        assert_eq!(asked, printed(&home, look)?, "{look:?}");
    }
    let hint_here = printed(&home, &why)?;
    assert_eq!(hint.replace(&format!(" --admin {url}"), ""), hint_here);
    Ok(())
}

#[test]
fn what_cannot_be_asked_says_what_to_do() -> Result<()> {
    let home = home()?;
    let list = ["keys", "list", "cases", "--admin"];
    let of = |url: &'static str| [&list[..], &[url]].concat();
    for url in ["127.0.0.1:7070", "odd", "ftp://localhost", ""] {
        refused(&home, &of(url), "", 2, "such as http://127.0.0.1:7070")?;
    }
    let both = ["keys", "list", "cases", "--config", "ordain.toml", "--admin", "http://localhost"];
    refused(&home, &both, "", 2, "cannot be used with")?;

    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let nobody = format!("http://{free}");
    for look in [&["keys", "list", "cases"][..], &["plugins", "list"], &["dead", "list", "cases"]] {
        let args = [look, &["--admin", &nobody]].concat();
        refused(&home, &args, "", 75, "no process answers at http://127.0.0.1:")?;
    }
    Ok(())
}

#[test]
fn what_the_process_refuses_is_told() -> Result<()> {
    let home = home()?;
    let config = home.read("ordain.toml");
    home.write("ordain.toml", format!("{config}token = \"{TOKEN}\"\n"))?;
    let mut service = Service::start(&home, &["run"])?;
    let url = format!("http://{}", ready(&mut service)?);
    let list = ["keys", "list", "cases", "--admin", &url];
    refused(&home, &list, "", 1, "wants ORDAIN_TOKEN: set it to `token` of its [admin]")?;
    refused(&home, &list, "another-secret-token", 1, "refuses the token in ORDAIN_TOKEN")?;
    refused(&home, &list, "strange\nsecret", 1, "strange characters in ORDAIN_TOKEN?")?;
    for (args, words) in [
        (&["keys", "list", "odd"][..], "there is no stream \"odd\"; there are: cases"),
        (&["keys", "show", "cases", "absent"], "key \"absent\" of stream cases has never been"),
        (&["keys", "why", "cases", "absent"], "key \"absent\" of stream cases has never been"),
        (&["dead", "list", "odd"], "there is no stream \"odd\""),
        (&["dead", "show", "cases", "1-1"], "has no dead letter 1-1"),
    ] {
        refused(&home, &[args, &["--admin", &url]].concat(), TOKEN, 1, words)?;
    }
    let odd = ["dead", "show", "cases", "odd", "--admin", &url];
    refused(&home, &odd, TOKEN, 2, "like 3-b05cb4f9ec0b9b83")
}

#[test]
fn another_server_is_told_apart() -> Result<()> {
    let home = home()?;
    for (answer, found) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\n<ht>", "its status is 404"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ht>", "its status is 200"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "its answer has no `keys`"),
        ("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "its status is 302"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "is no admin listener of this version of Ordain"),
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
