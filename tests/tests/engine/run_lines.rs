//! Tests of lines that are not valid events. Each such line must become one dead letter that names the line and the
//! fault. The host must process all other lines.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, ingress, post};
use ordain_tests::log::{by_key, in_turn, line, text, with_unusual_times};
use ordain_tests::seed::kill_seed;
use ordain_tests::service::Service;
use ordain_tests::tally;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const LIMITS: &str = r#"
[runtime]
event_size = "4KiB"
"#;

fn config() -> String {
    format!("{LIMITS}{}", tally::CONFIG)
}

/// Invalid lines. Each row has the line, the cause of its dead letter, and a part of the error.
const INVALID_LINES: &[(&[u8], &str, &str)] = &[
    (b"no JSON", "unreadable", "not a CloudEvent in JSON"),
    (b"{\"specversion\":\"1.0\"", "unreadable", "EOF while parsing"),
    (b"{\"id\":\"\xff\xfe\"}", "unreadable", "not UTF-8"),
    (b"[1, 2]", "unreadable", "expected a JSON object"),
    (b"17", "unreadable", "expected a JSON object"),
    (b"{}", "unreadable", "`specversion` is missing"),
    (b"\0\0\0 x", "unreadable", "not a CloudEvent in JSON"),
    (br#"{"specversion":"1.0","id":"a","id":"b"}"#, "unreadable", "`id` occurs twice"),
    (
        br#"{"specversion":"1.0","source":"/t","type":"t","subject":"k0","sequence":9}"#,
        "unreadable",
        "`id` is missing",
    ),
    (
        br#"{"specversion":"1.0","id":"x","source":"/t","type":"t","sequence":1}"#,
        "no-key",
        "`partitionkey` or `subject`",
    ),
    (
        br#"{"specversion":"1.0","id":"x","source":"/t","type":"t","subject":"k0","sequence":"abc"}"#,
        "no-sequence",
        r#"must be a whole number below 18446744073709551615, found "abc""#,
    ),
    (
        br#"{"specversion":"1.0","id":"x","source":"/t","type":"t","subject":"k0","sequence":-1}"#,
        "no-sequence",
        "found -1",
    ),
    (&[b'x'; 5_000], "unreadable", "5000 bytes, more than 4096 (runtime.event_size)"),
];

/// Blanks, and lines that contain only blanks. NULs count as blanks. [`mixed`] puts one of these texts before each
/// event, in turn.
const BLANKS: [&[u8]; 6] =
    [b"", b" \t \n", b"\xef\xbb\xbf\n", b"\xc2\xa0 \r\n", b"\0\0\0", b"\0\n \0\t"];

/// Returns the text of a file with valid, invalid and blank lines. An invalid line follows each event whose index is a
/// multiple of `every`. Also returns a map from the line number of each invalid line to its index in [`INVALID_LINES`].
fn mixed(good: &[String], every: usize) -> (Vec<u8>, BTreeMap<usize, usize>) {
    // The file begins with a byte order mark, which belongs to no event.
    let mut text = b"\xef\xbb\xbf".to_vec();
    let mut line = 0;
    let mut bad = BTreeMap::new();
    for (number, event) in good.iter().enumerate() {
        let blanks = BLANKS[number % BLANKS.len()];
        text.extend(blanks);
        line += usize::from(blanks.contains(&b'\n'));
        text.extend(event.as_bytes());
        // Lines may end in `\n` or `\r\n`, and lines may be empty.
        text.extend(if number % 2 == 0 { &b"\n"[..] } else { b"\r\n\n" });
        line += 1 + number % 2;
        if number % every == 0 {
            let which = number / every % INVALID_LINES.len();
            text.extend(INVALID_LINES[which].0);
            text.push(b'\n');
            line += 1;
            bad.insert(line, which);
        }
    }
    // The last line has no line ending.
    text.pop();
    (text, bad)
}

fn home(good: &[String], every: usize) -> Result<(Home, BTreeMap<usize, usize>)> {
    let home = Home::new(&["tally"], &config())?;
    let (text, bad) = mixed(good, every);
    home.write("events.ndjson", text)?;
    Ok((home, bad))
}

/// Checks that each invalid line has one dead letter, with its line number, its cause and its error. The store must
/// have no other dead letters.
fn check_letters(home: &Home, bad: &BTreeMap<usize, usize>) -> Result<()> {
    let letters = home.rows(&["dead", "list", "cases", "--json", "--limit", "100000"])?;
    ensure!(
        letters.len() == bad.len(),
        "{} dead letters of {} invalid lines",
        letters.len(),
        bad.len()
    );
    let text = |letter: &Value, field: &str| -> Result<String> {
        Ok(letter[field].as_str().with_context(|| format!("no {field} in {letter}"))?.to_owned())
    };
    let mut by_origin = BTreeMap::new();
    for letter in &letters {
        by_origin.insert(text(letter, "origin")?, (text(letter, "cause")?, text(letter, "error")?));
    }
    for (line, which) in bad {
        let (_, expected, words) = INVALID_LINES[*which];
        let origin = format!("line {line} of events.ndjson");
        let (cause, error) =
            by_origin.get(&origin).with_context(|| format!("no dead letter of {origin}"))?;
        ensure!(cause == expected && error.contains(words), "{origin}: {cause}: {error}");
    }
    Ok(())
}

#[test]
fn each_bad_line_is_one_dead_letter() -> Result<()> {
    let good = in_turn(4, 40);
    let (home, bad) = home(&good, 5)?;
    assert!(bad.len() >= INVALID_LINES.len());
    let report = home.run_once()?;
    assert_eq!((report["settled"].as_u64(), report["duplicates"].as_u64()), (Some(160), Some(0)));
    assert_eq!(report["dead_total"].as_u64(), Some(bad.len() as u64));
    check_letters(&home, &bad)?;
    tally::check(&by_key(&good)?, &home.read("out.ndjson"))?;

    let again = home.run_once()?;
    assert_eq!((again["delivered"].as_u64(), again["dead_total"].as_u64()), (Some(0), Some(0)));
    // Replaces the file by a copy without the byte order mark. The host must read every line again, and recognise every
    // event.
    let text = std::fs::read(home.path("events.ndjson"))?;
    home.replace("events.ndjson", text.strip_prefix(b"\xef\xbb\xbf").context("the mark")?)?;
    let again = home.run_once()?;
    assert_eq!((again["settled"].as_u64(), again["duplicates"].as_u64()), (Some(0), Some(160)));
    check_letters(&home, &bad)?;
    tally::check(&by_key(&good)?, &home.read("out.ndjson"))
}

#[test]
fn bad_line_is_one_dead_letter_despite_kills() -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(kill_seed()?);
    let good = in_turn(50, 200);
    let (home, bad) = home(&good, 7)?;
    for _ in 0..10 {
        let before = home.lines("out.ndjson");
        let mut service = Service::start(&home, &["run"])?;
        let some = before + rng.random_range(0..1_500);
        service.until("messages", || home.lines("out.ndjson") >= some.min(good.len()))?;
        std::thread::sleep(Duration::from_micros(rng.random_range(0..5_000)));
        service.kill()?;
    }
    home.run_once()?;
    check_letters(&home, &bad)?;
    tally::check(&by_key(&good)?, &home.read("out.ndjson"))
}

/// The time of an event is optional. An event with a valid but unusual time must take effect.
#[test]
fn events_with_unusual_times_take_effect() -> Result<()> {
    let lines = with_unusual_times()?;
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&lines))?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["dead_total"]), (&lines.len().into(), &0.into()));
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;

    let source = "kind = \"file\", path = \"events.ndjson\"";
    let config = tally::CONFIG.replace(source, "kind = \"http\"");
    let home = Home::new(&["tally"], &format!("[ingress]\nlisten = \"127.0.0.1:0\"\n{config}"))?;
    let mut service = Service::start(&home, &["run"])?;
    let answer = post(ingress(&mut service)?, LINES_TYPE, &text(&lines))?;
    ensure!(answer.status == 202, "{answer:?}");
    service.until("all messages", || home.lines("out.ndjson") == lines.len())?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    service.end()
}

/// Unicode has two forms of some letters: one code point, or a letter and a mark. Ordain compares keys byte by byte, so
/// the two forms of one text are two keys.
#[test]
fn unicode_forms_of_one_text_are_two_keys() -> Result<()> {
    let keys = ["caf\u{e9}", "cafe\u{301}"];
    let events = (1..=3).flat_map(|n| keys.map(|key| line(key, n, &json!({ "n": n }))));
    let lines: Vec<String> = events.collect();
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&lines))?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["dead_total"]), (&6.into(), &0.into()));
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    for key in keys {
        let rows = home.rows(&["keys", "show", "cases", key, "--json"])?;
        ensure!(rows.len() == 1 && rows[0]["key"] == key && rows[0]["next"] == 4, "{rows:?}");
    }
    Ok(())
}

#[test]
fn empty_file_ends_the_run() -> Result<()> {
    let home = Home::new(&["tally"], &config())?;
    for empty in
        ["", "\n", "\r\n\n\n", " \t ", "\t\n", "\u{feff}", "\0\0\n\u{a0}\n\0", "\u{2028}\n"]
    {
        home.write("events.ndjson", empty)?;
        let report = home.run_once()?;
        assert_eq!((&report["delivered"], &report["dead_total"]), (&0.into(), &0.into()));
    }
    assert_eq!(home.read("out.ndjson"), "");
    Ok(())
}

/// A program can truncate a file while another program continues to write at its old position instead of appending to
/// the file. After the truncation, the file begins with NULs. The number of NULs can exceed the size limit of an event.
/// A run may end between the NULs and the next event; the next run must resume at this position.
#[test]
fn nuls_before_an_event_are_skipped() -> Result<()> {
    let good = in_turn(2, 4);
    let home = Home::new(&["tally"], &config())?;
    let zeros = vec![0; 3_000_000];
    let mut text = zeros.clone();
    for (number, line) in good[..6].iter().enumerate() {
        if number == 3 {
            text.extend(&zeros[..100_000]);
        }
        text.extend(line.as_bytes());
        text.push(b'\n');
    }
    text.extend(&zeros[..8_000]);
    home.write("events.ndjson", &text)?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["dead_total"]), (&6.into(), &0.into()));
    // The next runs continue after the NULs.
    for line in &good[6..] {
        home.append("events.ndjson", format!(" {line} \n\0"))?;
        let report = home.run_once()?;
        assert_eq!((&report["delivered"], &report["settled"]), (&1.into(), &1.into()));
        assert_eq!(&report["dead_total"], 0);
    }
    // A line that is too long must still become one dead letter.
    home.append("events.ndjson", [&zeros[..5_000], &[b'x'; 5_000], b"\n"].concat())?;
    let report = home.run_once()?;
    assert_eq!((&report["delivered"], &report["dead_total"]), (&1.into(), &1.into()));
    tally::check(&by_key(&good)?, &home.read("out.ndjson"))
}
