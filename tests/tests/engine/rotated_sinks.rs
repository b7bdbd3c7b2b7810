//! Tests of a sink's file that another program renames, removes, replaces or truncates while the host writes to the
//! file. No message may be lost. The host may write a message twice only if the other program removed, replaced or
//! truncated the file before the host had synced the message.

use std::collections::HashSet;
use std::fs::{self, File};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

const EVENTS: &str = "events.ndjson";
const SINK_FILE: &str = "out.ndjson";
/// The number of lines that a test appends to the input at a time: one event of each key. The comments call these lines
/// a part.
const PART_LINES: usize = 10;

struct Rig {
    home: Home,
    service: Service,
    lines: Vec<String>,
    written: usize,
}

impl Rig {
    fn start(config: &str) -> Result<Self> {
        let home = Home::new(&["tally"], config)?;
        home.write(EVENTS, "")?;
        let service = Service::start(&home, &["run"])?;
        Ok(Self { home, service, lines: in_turn(PART_LINES, 20), written: 0 })
    }

    /// Appends a part to the input, and waits until the messages of the part are in the file at the path of the sink.
    fn publish_part(&mut self) -> Result<()> {
        let part = text(&self.lines[self.written..self.written + PART_LINES]);
        self.written += PART_LINES;
        // A part has one event of each key, so all its events have the same sequence.
        let sequence = self.written / PART_LINES;
        self.home.append(EVENTS, part)?;
        let Self { home, service, .. } = self;
        service.until("the messages in the file at the path of the sink", || {
            messages(home, sequence) == PART_LINES
        })
    }

    /// Checks that `outputs` together have a message for each line, in order. A program may have removed or truncated a
    /// file before the host had synced the last lines of the file. The host then writes these lines again, so a message
    /// may be repeated.
    fn check(&self, outputs: &[String]) -> Result<()> {
        let mut seen = HashSet::new();
        let all = outputs.concat();
        let distinct: Vec<&str> = all.lines().filter(|line| seen.insert(*line)).collect();
        tally::check(&by_key(&self.lines[..self.written])?, &distinct.join("\n"))
    }

    /// Checks that `files` together have one message for each line, in order, without repeats.
    fn check_files(&self, files: &[&str]) -> Result<()> {
        let output: String = files.iter().map(|file| self.home.read(file)).collect();
        tally::check(&by_key(&self.lines[..self.written])?, &output)
    }
}

/// Returns the number of messages with this sequence in the file of the sink.
fn messages(home: &Home, sequence: usize) -> usize {
    let has_sequence = |line: &&str| {
        serde_json::from_str::<Value>(line).is_ok_and(|line| line["data"]["sequence"] == sequence)
    };
    home.read(SINK_FILE).lines().filter(has_sequence).count()
}

#[test]
fn next_messages_are_not_written_to_a_renamed_file() -> Result<()> {
    let sequenced = "path = \"out.ndjson\"\nsequenced = true";
    for config in [tally::CONFIG, &tally::CONFIG.replace("path = \"out.ndjson\"", sequenced)] {
        let mut rig = Rig::start(config)?;
        rig.publish_part()?;
        // After the first rename, the test creates the new file, as other programs do. After each later rename, the
        // host creates the new file.
        fs::rename(rig.home.path(SINK_FILE), rig.home.path("out.1"))?;
        rig.home.write(SINK_FILE, "")?;
        rig.publish_part()?;
        fs::rename(rig.home.path(SINK_FILE), rig.home.path("out.2"))?;
        rig.publish_part()?;
        rig.service.kill()?;
        rig.service = Service::start(&rig.home, &["run"])?;
        rig.publish_part()?;
        fs::rename(rig.home.path(SINK_FILE), rig.home.path("out.3"))?;
        rig.publish_part()?;
        rig.service.end()?;
        rig.check_files(&["out.1", "out.2", "out.3", SINK_FILE])?;
        ensure!(rig.service.stderr().contains("was renamed, removed or replaced"));
    }
    Ok(())
}

#[test]
fn removed_file_is_created_again() -> Result<()> {
    let mut rig = Rig::start(tally::CONFIG)?;
    rig.publish_part()?;
    let mut files = vec![rig.home.read(SINK_FILE)];
    for _ in 0..3 {
        fs::remove_file(rig.home.path(SINK_FILE))?;
        rig.publish_part()?;
        files.push(rig.home.read(SINK_FILE));
    }
    rig.service.end()?;
    rig.check(&files)
}

/// Another program replaces the sink's file by a file with other data. The host must keep this data.
#[test]
fn replaced_file_keeps_its_data() -> Result<()> {
    let mut rig = Rig::start(tally::CONFIG)?;
    rig.publish_part()?;
    let before = rig.home.read(SINK_FILE);
    rig.home.replace(SINK_FILE, "the line of another program\nhalf")?;
    rig.publish_part()?;
    rig.service.end()?;
    let out = rig.home.read(SINK_FILE);
    let after = out.strip_prefix("the line of another program\nhalf\n").context(out.clone())?;
    rig.check(&[before, after.to_owned()])
}

#[test]
fn copied_and_truncated_file_continues_at_its_beginning() -> Result<()> {
    let mut rig = Rig::start(tally::CONFIG)?;
    for copy in ["out.1", "out.2"] {
        rig.publish_part()?;
        rig.publish_part()?;
        fs::copy(rig.home.path(SINK_FILE), rig.home.path(copy))?;
        File::options().write(true).open(rig.home.path(SINK_FILE))?.set_len(0)?;
    }
    rig.publish_part()?;
    rig.service.end()?;
    rig.check(&["out.1", "out.2", SINK_FILE].map(|file| rig.home.read(file)))
}

/// The folder of the sink's file is missing for a while. The host must keep the messages until it can create the file
/// again.
#[test]
fn missing_folder_delays_messages() -> Result<()> {
    let config = tally::CONFIG.replace("path = \"out", "path = \"folder/out");
    let home = Home::new(&["tally"], &config)?;
    fs::create_dir(home.path("folder"))?;
    home.write(EVENTS, "")?;
    let mut service = Service::start(&home, &["run"])?;
    let lines = in_turn(1, 2);
    home.append(EVENTS, text(&lines[..1]))?;
    service.until("the first message", || home.lines("folder/out.ndjson") == 1)?;
    fs::rename(home.path("folder"), home.path("old"))?;
    home.append(EVENTS, text(&lines[1..]))?;
    service.until_says("sink not writable")?;
    fs::create_dir(home.path("folder"))?;
    service.until_says("sink writable again")?;
    service.until("the second message", || home.lines("folder/out.ndjson") == 1)?;
    service.end()?;
    let output = home.read("old/out.ndjson") + &home.read("folder/out.ndjson");
    tally::check(&by_key(&lines)?, &output)
}

/// Another program gives the file of a sink to another sink of the host. The first sink has no message to write, and
/// must unlock its file for the second sink.
#[test]
fn sink_can_take_the_file_of_another_sink() -> Result<()> {
    let config = "[streams.cases]\nhandler = \"faulty\"\nsource = { kind = \"file\", path = \"events.ndjson\" }\n\
                  [sinks.left]\nkind = \"file\"\npath = \"left\"\n\
                  [sinks.right]\nkind = \"file\"\npath = \"right\"\n";
    let home = Home::new(&["faulty"], config)?;
    home.write(EVENTS, "")?;
    let mut service = Service::start(&home, &["run"])?;
    let mut sequence = 0;
    let mut emit = |sink: &str, expected: usize| -> Result<()> {
        sequence += 1;
        let data = json!({ "do": "emit", "sink": sink, "messages": 1 });
        home.append(EVENTS, line("k", sequence, &data) + "\n")?;
        service.until("the message", || home.lines(sink) == expected)
    };
    for (left, right) in [("left", "right"), ("right", "left")] {
        let before = home.lines(left);
        emit(left, before + 1)?;
        fs::rename(home.path(left), home.path(right))?;
        emit(right, before + 2)?;
    }
    service.end()?;
    ensure!(home.lines("left") == 4, "not all messages are in the file");
    Ok(())
}

/// Another program renames the file to which a stream forwards its dead letters.
#[test]
fn next_dead_letter_is_not_written_to_a_renamed_file() -> Result<()> {
    let sink = "[sinks.dead]\nkind = \"file\"\npath = \"dead.ndjson\"\n";
    let config = tally::CONFIG.replace("\n[sinks", "dead_letter = \"dead\"\n\n[sinks") + sink;
    let home = Home::new(&["tally"], &config)?;
    home.write(EVENTS, "")?;
    let mut service = Service::start(&home, &["run"])?;
    for file in ["dead.1", "dead.2", "dead.3"] {
        home.append(EVENTS, "no event\n")?;
        service.until("a dead letter", || home.lines("dead.ndjson") == 1)?;
        fs::rename(home.path("dead.ndjson"), home.path(file))?;
    }
    service.end()?;
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.len() == 3);
    Ok(())
}

const LOAD: u64 = 400;
const ROTATIONS: usize = 20;

/// The test renames the file repeatedly while the host writes, and in some runs kills the host after every fourth
/// rotation. In one of these runs, the path is a link to a file in another folder.
#[test]
fn rotation_under_load_loses_and_repeats_nothing() -> Result<()> {
    for (kills, out) in [(false, SINK_FILE), (true, SINK_FILE), (true, "app/log")] {
        let config = "[runtime]\nbatch = 3\n".to_owned() + tally::CONFIG;
        let home = Home::new(&["tally"], &config)?;
        let lines = in_turn(20, LOAD);
        home.write(EVENTS, "")?;
        if out != SINK_FILE {
            fs::create_dir(home.path("app"))?;
            std::os::unix::fs::symlink(out, home.path(SINK_FILE))?;
        }
        let mut service = Service::start(&home, &["run"])?;
        let mut files = Vec::new();
        thread::scope(|scope| -> Result<()> {
            let writer = scope.spawn(|| -> Result<()> {
                for part in lines.chunks(40) {
                    home.append(EVENTS, text(part))?;
                    thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            });
            let published = |files: &[String]| -> usize {
                let older = files.iter().map(|file| home.lines(file)).sum::<usize>();
                older + home.lines(out)
            };
            while files.len() < ROTATIONS && published(&files) < lines.len() {
                service.until("messages", || {
                    home.lines(out) > 0 || published(&files) == lines.len()
                })?;
                let name = format!("{out}.{}", files.len());
                fs::rename(home.path(out), home.path(&name))?;
                files.push(name);
                if kills && files.len() % 4 == 0 {
                    service.kill()?;
                    service = Service::start(&home, &["run"])?;
                }
            }
            writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        ensure!(files.len() > 1, "the file was rotated only {} times", files.len());
        files.push(out.to_owned());
        service.until("all messages", || {
            files.iter().map(|file| home.lines(file)).sum::<usize>() >= lines.len()
        })?;
        service.end()?;
        let output: String = files.iter().map(|file| home.read(file)).collect();
        tally::check(&by_key(&lines)?, &output)
            .with_context(|| format!("{out}, kills: {kills}"))?;
    }
    Ok(())
}

fn link_sink(home: &Home, file: &str) -> Result<()> {
    std::os::unix::fs::symlink(file, home.path("new"))?;
    Ok(fs::rename(home.path("new"), home.path(SINK_FILE))?)
}

/// The path is a link. During the second run, the link leads to the file of the first run again.
#[test]
fn link_that_returns_to_an_earlier_file_repeats_nothing() -> Result<()> {
    for kills in [false, true] {
        let home = Home::new(&["tally"], tally::CONFIG)?;
        home.write(EVENTS, "")?;
        // Each key has one event, so the order of the files does not matter.
        let lines = in_turn(4, 1);
        let mut parts = lines.chunks(1);
        for files in [&["a"][..], &["b", "a"], &["a"]] {
            link_sink(&home, files[0])?;
            let mut service = Service::start(&home, &["run"])?;
            for file in files {
                link_sink(&home, file)?;
                let before = home.lines(file);
                home.append(EVENTS, text(parts.next().context("a line")?))?;
                service.until("the message", || home.lines(file) > before)?;
            }
            if kills {
                service.kill()?;
            } else {
                service.end()?;
            }
            for report in ["THE STORE WENT BACK IN TIME", "truncated, replaced or removed"] {
                ensure!(!service.stderr().contains(report), "{}", service.stderr());
            }
        }
        tally::check(&by_key(&lines)?, &(home.read("a") + &home.read("b")))?;
    }
    Ok(())
}

/// The path is a link. The test lets the link lead to a new file repeatedly while the host writes, and kills the host
/// after every other change. Each message must be in one of the files.
#[test]
fn change_of_a_link_loses_and_repeats_nothing() -> Result<()> {
    let config = "[runtime]\nbatch = 3\n".to_owned() + tally::CONFIG;
    let home = Home::new(&["tally"], &config)?;
    let lines = in_turn(20, LOAD);
    home.write(EVENTS, "")?;
    let lead_to = |file: &str| link_sink(&home, file);
    let published = |files: &[String]| files.iter().map(|file| home.lines(file)).sum::<usize>();
    let mut files = vec!["out-0".to_owned()];
    lead_to("out-0")?;
    let mut service = Service::start(&home, &["run"])?;
    thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| -> Result<()> {
            for part in lines.chunks(40) {
                home.append(EVENTS, text(part))?;
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        while files.len() < ROTATIONS && published(&files) < lines.len() {
            service.until("messages", || {
                home.lines(SINK_FILE) > 0 || published(&files) == lines.len()
            })?;
            let file = format!("out-{}", files.len());
            lead_to(&file)?;
            files.push(file);
            if files.len() % 2 == 0 {
                service.kill()?;
                service = Service::start(&home, &["run"])?;
            }
        }
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    ensure!(files.len() > 2, "the link was changed only {} times", files.len() - 1);
    service.until("all messages", || published(&files) >= lines.len())?;
    service.end()?;
    let output: String = files.iter().map(|file| home.read(file)).collect();
    tally::check(&by_key(&lines)?, &output)
}
