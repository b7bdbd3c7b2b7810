//! The advice to remove the default delivery limit of existing queues by a policy of the broker.

use crate::connect::BrokerEndpoint;
use ordain_util::text::shell_quoted;

/// The characters with a meaning in the regular expressions of RabbitMQ.
const PATTERN_CHARACTERS: &[u8] = br"\^$.|?*+()[]{}";

/// Returns the command that removes the delivery limit of these queues of a stream. An operator can paste the command
/// into a shell, even if the names of the queues contain special characters.
pub fn no_delivery_limit_command(
    broker: &BrokerEndpoint,
    stream: &str,
    queues: &[String],
) -> String {
    let virtual_host = match &*broker.virtual_host() {
        "/" => String::new(),
        name => format!("-p {} ", shell_quoted(name)),
    };
    let patterns: Vec<String> = queues.iter().map(|queue| exact_pattern(queue)).collect();
    // A policy replaces an earlier policy of the same name, so each stream has its own policy.
    format!(
        "rabbitmqctl set_policy {virtual_host}ordain-no-delivery-limit-{stream} {} '{{\"delivery-limit\": -1}}' \
         --apply-to quorum_queues",
        shell_quoted(&format!("^({})$", patterns.join("|")))
    )
}

/// Returns the regular expression that matches only `name`. RabbitMQ compares bytes, so the expression contains an
/// escape for each byte that is not a printable ASCII character.
fn exact_pattern(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b' '..=b'~' if PATTERN_CHARACTERS.contains(&byte) => {
                pattern.extend(['\\', char::from(byte)]);
            }
            b' '..=b'~' => pattern.push(char::from(byte)),
            _ => pattern += &format!("\\x{byte:02x}"),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    fn command(url: &str, queues: &[&str]) -> String {
        let broker = BrokerEndpoint::new(
            ordain_config::BrokerAddress::parse(url).expect("a URL"),
            Duration::from_secs(1),
        );
        let queues: Vec<String> = queues.iter().map(|queue| (*queue).to_owned()).collect();
        no_delivery_limit_command(&broker, "orders", &queues)
    }

    #[test]
    fn command_sets_a_policy_for_all_queues() {
        assert_eq!(
            command("amqp://localhost", &["orders.0", "orders.1"]),
            concat!(
                r"rabbitmqctl set_policy ordain-no-delivery-limit-orders '^(orders\.0|orders\.1)$' ",
                r#"'{"delivery-limit": -1}' --apply-to quorum_queues"#
            )
        );
    }

    /// Bash passes the special characters of names to `rabbitmqctl` unchanged.
    #[test]
    fn command_can_be_pasted_into_a_shell() {
        let queues = ["it's $HOME", "a.b|c(d)*", "\\\"`x`", "ä\n"];
        let command = command("amqp://localhost/my%20host's", &queues);
        let printed = Command::new("bash")
            .args(["-c", &format!("printf '%s\\n' {command}")])
            .output()
            .expect("the arguments");
        let printed = String::from_utf8(printed.stdout).expect("a text");
        let arguments: Vec<&str> = printed.lines().collect();
        assert_eq!(
            arguments,
            [
                "rabbitmqctl",
                "set_policy",
                "-p",
                "my host's",
                "ordain-no-delivery-limit-orders",
                r#"^(it's \$HOME|a\.b\|c\(d\)\*|\\"`x`|\xc3\xa4\x0a)$"#,
                r#"{"delivery-limit": -1}"#,
                "--apply-to",
                "quorum_queues",
            ]
        );
    }
}
