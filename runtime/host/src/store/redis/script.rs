//! The scripts that run in the server, and how they are called: by their digest, and by their text
//! where the server does not know them yet or has forgotten them.

use redis::{Cmd, Script as Digested, cmd};

const COMMON: &str = include_str!("scripts/common.lua");

/// A script.
#[derive(Debug)]
pub(super) struct Script {
    /// Its name, for messages.
    pub(super) name: &'static str,
    text: String,
    digest: String,
}

impl Script {
    /// One that writes. Where the server has no memory left, or cannot write for another reason,
    /// it refuses it before its first write.
    fn writing(name: &'static str, body: &str) -> Self {
        Self::new(name, "#!lua", body)
    }

    /// One that only reads.
    fn reading(name: &'static str, body: &str) -> Self {
        Self::new(name, "#!lua flags=no-writes", body)
    }

    /// One that only removes: it runs also where there is no memory left, and makes room.
    fn removing(name: &'static str, body: &str) -> Self {
        Self::new(name, "#!lua flags=allow-oom", body)
    }

    fn new(name: &'static str, first_line: &str, body: &str) -> Self {
        let text = format!("{first_line}\n{COMMON}\n{body}");
        let digest = Digested::new(&text).get_hash().to_owned();
        Self { name, text, digest }
    }

    /// A call of it, to which the arguments are appended. The first key tells the node.
    pub(super) fn call(&self, keys: &[String]) -> Cmd {
        let mut call = cmd("EVALSHA");
        call.arg(&self.digest).arg(keys.len()).arg(keys);
        call
    }

    /// The same call with the text in place of the digest.
    pub(super) fn with_text(&self, call: &Cmd) -> Cmd {
        let mut whole = cmd("EVAL");
        whole.arg(&self.text);
        for argument in call.args_iter().skip(2) {
            if let redis::Arg::Simple(argument) = argument {
                whole.arg(argument);
            }
        }
        whole
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) open: Script,
    pub(super) epoch: Script,
    pub(super) claim: Script,
    pub(super) commit: Script,
    pub(super) done: Script,
    pub(super) load: Script,
    pub(super) take_over: Script,
    pub(super) spill: Script,
    pub(super) due: Script,
    pub(super) keys: Script,
    pub(super) letters: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            open: Script::writing("open", include_str!("scripts/open.lua")),
            epoch: Script::writing("epoch", include_str!("scripts/epoch.lua")),
            claim: Script::writing("claim", include_str!("scripts/claim.lua")),
            commit: Script::writing("commit", include_str!("scripts/commit.lua")),
            done: Script::removing("done", include_str!("scripts/done.lua")),
            load: Script::reading("load", include_str!("scripts/load.lua")),
            take_over: Script::writing("take-over", include_str!("scripts/take_over.lua")),
            spill: Script::reading("spill", include_str!("scripts/spill.lua")),
            due: Script::reading("due", include_str!("scripts/due.lua")),
            keys: Script::reading("keys", include_str!("scripts/keys.lua")),
            letters: Script::reading("letters", include_str!("scripts/letters.lua")),
        }
    }
}
