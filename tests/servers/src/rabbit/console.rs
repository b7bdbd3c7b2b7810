//! Sends Erlang expressions to a broker, which evaluates them. At its start, the broker opens a TCP port for this
//! purpose: the console port.
//!
//! For each command, `rabbitmqctl` starts another Erlang virtual machine, which costs a second of processor time. A
//! command over the console port takes a few milliseconds. The console port opens a moment after the broker logs the
//! end of its start.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::port::Port;

/// The time limit of a command: a paused broker does not reply.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// The Erlang program that accepts connections at the console port, and replies to requests. A request is the text of
/// Erlang expressions. A reply is a byte (0, or 1 for an error) and the value of the last expression. The reply
/// contains a binary unchanged, and any other value in Erlang's notation. Four bytes with the length precede each
/// request and each reply.
const SCRIPT: &str = r#"
Evaluate = fun(Text) ->
    try
        {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Text)),
        {ok, Expressions} = erl_parse:parse_exprs(Tokens),
        {value, Value, _} = erl_eval:exprs(Expressions, []),
        [0, if is_binary(Value) -> Value; true -> io_lib:format("~0tp", [Value]) end]
    catch Class:Reason ->
        [1, io_lib:format("~0tp", [{Class, Reason}])]
    end
end,
Serve = fun Serve(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Text} ->
            ok = gen_tcp:send(Socket, unicode:characters_to_binary(Evaluate(Text))),
            Serve(Socket);
        {error, _} ->
            gen_tcp:close(Socket)
    end
end,
Accept = fun Accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Server = spawn(fun() -> receive start -> Serve(Socket) end end),
    _ = gen_tcp:controlling_process(Socket, Server),
    Server ! start,
    Accept(Listener)
end,
spawn(fun() ->
    {ok, [[Port]]} = init:get_argument(console_port),
    Address = {ip, {127, 0, 0, 1}},
    Options = [binary, {packet, 4}, {active, false}, {reuseaddr, true}, Address],
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port), Options),
    Accept(Listener)
end).
"#;

/// The console of a broker: the port at which the broker evaluates expressions.
#[derive(Debug)]
pub(super) struct Console(Port);

impl Console {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Port::take()?))
    }

    /// Writes the script into a folder, and returns the arguments with which Erlang starts the script.
    pub(super) fn arguments(&self, folder: &Path) -> Result<[String; 4]> {
        let script = folder.join("console.erl");
        fs::write(&script, SCRIPT)?;
        let eval = format!("file:eval({:?}).", script.display().to_string());
        Ok(["-console_port".to_owned(), self.0.number().to_string(), "-eval".to_owned(), eval])
    }

    /// Evaluates expressions, which end with a full stop, and returns the value of the last expression.
    pub(super) fn evaluate(&self, expressions: &str) -> Result<String> {
        let answer =
            self.send(expressions).context("the broker did not evaluate the expressions")?;
        let (failed, text) = answer.split_first().context("the broker's answer is empty")?;
        let text = String::from_utf8_lossy(text).into_owned();
        ensure!(*failed == 0, "{expressions}: {text}");
        Ok(text)
    }

    fn send(&self, expressions: &str) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.0.number()))?;
        stream.set_read_timeout(Some(COMMAND_TIMEOUT))?;
        let length = u32::try_from(expressions.len())?.to_be_bytes();
        stream.write_all(&[&length, expressions.as_bytes()].concat())?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }
}
