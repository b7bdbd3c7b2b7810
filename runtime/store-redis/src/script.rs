//! The scripts that run in the server, and how they are called: by their digest, and by their text
//! where the server does not know them yet or has forgotten them.

use redis::{Cmd, Script as Digested, cmd};

use super::record;

/// A script.
#[derive(Debug)]
pub(super) struct Script {
    /// Its name, for messages.
    pub(super) name: &'static str,
    text: String,
    digest: String,
}

impl Script {
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
        for argument in simple_args(call).skip(2) {
            whole.arg(argument);
        }
        whole
    }

    /// The keys of a call.
    pub(super) fn keys(call: &Cmd) -> Vec<String> {
        let mut rest = simple_args(call).skip(2).map(String::from_utf8_lossy);
        let count = rest.next().and_then(|count| count.parse().ok()).unwrap_or(0);
        rest.take(count).map(Into::into).collect()
    }
}

/// The key of a plain command.
pub(super) fn key_of(cmd: &Cmd) -> Vec<String> {
    let key = simple_args(cmd).nth(1).map(String::from_utf8_lossy);
    key.map(Into::into).into_iter().collect()
}

fn simple_args(call: &Cmd) -> impl Iterator<Item = &[u8]> {
    call.args_iter().filter_map(|argument| match argument {
        redis::Arg::Simple(argument) => Some(argument),
        _ => None,
    })
}

/// What scripts there are, each with its flags.
macro_rules! scripts {
    ($($name:ident $file:literal $flags:literal)*) => {
        /// All of them.
        #[derive(Debug)]
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)*
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                let common = concat!("\n", include_str!("scripts/common.lua"), "\n");
                let script = |name, flags: &str, body: &str| {
                    let text = format!("#!lua {flags}\n{}{common}{body}", record::layout());
                    Script { name, digest: Digested::new(&text).get_hash().to_owned(), text }
                };
                Self {
                    $($name: script(
                        stringify!($name),
                        $flags,
                        include_str!(concat!("scripts/", $file)),
                    ),)*
                }
            }
        }
    };
}

// Where the server has no memory left it refuses those without flags, before their first write.
// `allow-oom` is for those that make room, or that need little and without which nobody could.
scripts! {
    open "open.lua" "flags=allow-oom"
    beat "beat.lua" "flags=allow-oom"
    lease "lease.lua" "flags=allow-oom"
    release "release.lua" "flags=allow-oom"
    forget "forget.lua" "flags=allow-oom"
    decide "decide.lua" "flags=allow-oom"
    table "table.lua" "flags=no-writes"
    claim "claim.lua" "flags=allow-oom"
    commit "commit.lua" ""
    outbox "outbox.lua" "flags=no-writes"
    done "done.lua" "flags=allow-oom"
    checkpoint "checkpoint.lua" "flags=allow-oom"
    assign "assign.lua" ""
    queued "queued.lua" "flags=no-writes"
    dequeue "dequeue.lua" "flags=allow-oom"
    retained "retained.lua" "flags=no-writes"
    load "load.lua" "flags=no-writes"
    take_over "take_over.lua" ""
    spill "spill.lua" "flags=no-writes"
    due "due.lua" "flags=allow-oom"
    keys "keys.lua" "flags=no-writes"
    letters "letters.lua" "flags=no-writes"
    holds "holds.lua" "flags=no-writes"
}
