//! The Lua scripts that run in the server. The store calls a script by its digest. If the server does not have the
//! script in memory, the store calls it by its text.

use std::collections::BTreeMap;

use redis::{Cmd, Script as Digested, cmd};

/// The prefix of a constant in a script.
const CONSTANT_PREFIX: &str = "layout.";

/// A script with its text and its digest.
#[derive(Debug, Clone)]
pub(super) struct LuaScript {
    /// The name of the script, for messages.
    pub(super) name: &'static str,
    text: String,
    digest: String,
}

impl LuaScript {
    /// Creates a call of the script. The caller appends the arguments. In a Cluster, the first Redis key determines the
    /// node.
    pub(super) fn call(&self, keys: &[String]) -> Cmd {
        let mut call = cmd("EVALSHA");
        call.arg(&self.digest).arg(keys.len()).arg(keys);
        call
    }

    /// Creates a call with the same Redis keys and arguments as `call`, but with the text of the script instead of its
    /// digest.
    pub(super) fn with_text(&self, call: &Cmd) -> Cmd {
        let mut whole = cmd("EVAL");
        whole.arg(&self.text);
        for argument in simple_args(call).skip(2) {
            whole.arg(argument);
        }
        whole
    }

    /// Returns the Redis keys of a call of a script.
    pub(super) fn keys(call: &Cmd) -> Vec<String> {
        let mut rest = simple_args(call).skip(2).map(String::from_utf8_lossy);
        let count = rest.next().and_then(|count| count.parse().ok()).unwrap_or(0);
        rest.take(count).map(Into::into).collect()
    }
}

/// Returns the only Redis key of a command that does not call a script.
pub(super) fn key_of(cmd: &Cmd) -> Vec<String> {
    let key = simple_args(cmd).nth(1).map(String::from_utf8_lossy);
    key.map(Into::into).into_iter().collect()
}

/// Returns the name of a command that does not call a script, with its only Redis key, for messages.
pub(super) fn command_name(cmd: &Cmd) -> String {
    let parts: Vec<_> = simple_args(cmd).take(2).map(String::from_utf8_lossy).collect();
    parts.join(" of ")
}

/// Returns the hash tag (the bytes between braces) of the first Redis key; empty if the key has no hash tag.
pub(super) fn tag_of(cmd: &Cmd) -> &[u8] {
    let mut arguments = simple_args(cmd);
    let key = match arguments.next() {
        // The digest or text of the script and the number of keys come before the keys.
        Some(b"EVALSHA" | b"EVAL") => arguments.nth(2),
        _ => arguments.next(),
    };
    let tag = key.and_then(|key| {
        let from = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[from..].iter().position(|byte| *byte == b'}')?;
        Some(&key[from..from + length])
    });
    tag.unwrap_or_default()
}

fn simple_args(call: &Cmd) -> impl Iterator<Item = &[u8]> {
    call.args_iter().filter_map(|argument| match argument {
        redis::Arg::Simple(argument) => Some(argument),
        _ => None,
    })
}

/// Replaces each `layout.NAME` in a script by the number of the constant `NAME`. Locals would be an alternative, but
/// they would count against Lua's limit of 200 locals in a script, and a number in the text is faster than a local.
fn inline_constants(text: &str, layout: &BTreeMap<&str, usize>) -> String {
    let mut parts = text.split(CONSTANT_PREFIX);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let end = part.find(|letter| !is_of_name(letter)).unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        match layout.get(name) {
            Some(number) => whole.push_str(&number.to_string()),
            // Leave the expression for an unknown constant in the script. The script then fails in the server, and the
            // server's error names the constant.
            None => whole.extend([CONSTANT_PREFIX, name]),
        }
        whole.push_str(rest);
    }
    whole
}

/// Declares the scripts, each with its flags.
macro_rules! scripts {
    ($($name:ident $file:literal $flags:literal)*) => {
        /// All scripts.
        #[derive(Debug)]
        pub(super) struct LuaScripts {
            $(pub(super) $name: LuaScript,)*
        }

        impl LuaScripts {
            /// Builds all scripts. `layout` contains the values of the constants in the texts of the scripts.
            pub(super) fn new(layout: &BTreeMap<&str, usize>) -> Self {
                let common = include_str!("scripts/common.lua");
                let script = |name, flags: &str, body: &str| {
                    let body = inline_constants(&format!("{common}\n{body}"), layout);
                    let text = format!("#!lua {flags}\n{body}");
                    LuaScript { name, digest: Digested::new(&text).get_hash().to_owned(), text }
                };
                Self {
                    $($name: script(
                        stringify!($name),
                        $flags,
                        include_str!(concat!("scripts/", $file)),
                    ),)*
                }
            }

            #[cfg(test)]
            fn all(&self) -> Vec<&LuaScript> {
                vec![$(&self.$name,)*]
            }
        }
    };
}

// If a script has no flags, a server without free memory refuses the script before its first write. The flag
// `allow-oom` is for scripts that free memory, and for scripts that need little memory and must run before another
// script can free memory.
scripts! {
    open "open.lua" "flags=allow-oom"
    clock "clock.lua" "flags=allow-oom"
    writable "writable.lua" ""
    heartbeat "heartbeat.lua" "flags=allow-oom"
    lease "lease.lua" "flags=allow-oom"
    release "release.lua" "flags=allow-oom"
    forget "forget.lua" "flags=allow-oom"
    start_rollout "start_rollout.lua" "flags=allow-oom"
    table "table.lua" "flags=no-writes"
    claim "claim.lua" "flags=allow-oom"
    commit "commit.lua" ""
    outbox "outbox.lua" "flags=no-writes"
    remove_published "remove_published.lua" "flags=allow-oom"
    checkpoint "checkpoint.lua" "flags=allow-oom"
    mark "mark.lua" "flags=allow-oom"
    assign "assign.lua" ""
    read_queue "read_queue.lua" "flags=no-writes"
    dequeue "dequeue.lua" "flags=allow-oom"
    retained "retained.lua" "flags=no-writes"
    retained_sequences "retained_sequences.lua" "flags=no-writes"
    load "load.lua" "flags=no-writes"
    take_over "take_over.lua" ""
    spill "spill.lua" "flags=allow-oom"
    due "due.lua" "flags=allow-oom"
    keys "keys.lua" "flags=no-writes"
    letters "letters.lua" "flags=no-writes"
    has_data "has_data.lua" "flags=no-writes"
}

#[test]
fn constants_are_replaced_by_numbers() {
    let layout = BTreeMap::from([("NEXT", 41), ("NEXT_AT", 7)]);
    let text = "-- The layout.\nreturn layout.NEXT + layout.NEXT_AT, layout.OTHER";
    let expected = "-- The layout.\nreturn 41 + 7, layout.OTHER";
    assert_eq!(inline_constants(text, &layout), expected);
}

#[test]
fn hash_tag_is_found_in_every_form_of_a_command() {
    let scripts = LuaScripts::new(&super::layout::layout());
    let call =
        scripts.load.call(&["ordain:{12}:data:s".to_owned(), "ordain:{12}:ids:s".to_owned()]);
    let mut get = cmd("HGET");
    get.arg("ordain:{0}:marks").arg("{7}");
    for (command, tag) in
        [(&call, "12"), (&scripts.load.with_text(&call), "12"), (&get, "0"), (&cmd("INFO"), "")]
    {
        assert_eq!(tag_of(command), tag.as_bytes(), "{command:?}");
    }
}

/// A read and a write of the same Redis key need different names in the log.
#[test]
fn name_of_a_command_contains_the_command_and_its_key() {
    let mut get = cmd("HGET");
    get.arg("ordain:{0}:marks").arg("m");
    assert_eq!(command_name(&get), "HGET of ordain:{0}:marks");
}

#[test]
fn every_constant_of_a_script_is_known() {
    for script in LuaScripts::new(&super::layout::layout()).all() {
        let unknown = script.text.lines().find(|line| line.contains(CONSTANT_PREFIX));
        assert_eq!(unknown, None, "{}", script.name);
    }
}
