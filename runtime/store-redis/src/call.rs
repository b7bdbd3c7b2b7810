//! Sends commands and scripts to the server, and repeats requests that fail for a temporary reason.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisResult, Value, cmd};

use super::RedisStore;
use super::clock::NO_TIMES;
use super::connection::RedisConnection;
use super::error::{has_code, request_error};
use super::names::type_of;
use super::script::{LuaScript, command_name, key_of};
use super::value::text;
use ordain_store::StoreError;
use ordain_util::backoff::Backoff;

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

impl RedisStore {
    /// Creates a call of a script, with the first argument of all scripts. This argument contains two numbers: an
    /// offset that the script adds to the server's time, and the time of the store's clock plus the same offset.
    pub(super) fn script_call(&self, script: &LuaScript, keys: &[String]) -> Cmd {
        let mut call = script.call(keys);
        match &self.clock {
            None => call.arg(NO_TIMES),
            Some(clock) => {
                let offset = self.clock_offset_ms.load(Ordering::Relaxed);
                call.arg(format!("{offset} {}", clock.now().saturating_add(offset)))
            }
        };
        call
    }

    /// Runs a script, and repeats the call if another try may succeed. Commits do not use this function, because the
    /// caller of a commit decides whether to repeat it.
    pub(super) async fn run_script(
        &self,
        script: &LuaScript,
        call: Cmd,
    ) -> Result<Value, StoreError> {
        let what = || format!("{} of {}", script.name, LuaScript::keys(&call).join(", "));
        let ask = || async {
            self.run_script_once(script, &call).await.map_err(|error| request_error(&error))
        };
        let answer = self.retry(ask, what).await;
        self.with_key_name(answer, || LuaScript::keys(&call)).await
    }

    /// Sends a command, and repeats it if another try may succeed.
    pub(super) async fn run_command(&self, cmd: &Cmd) -> Result<Value, StoreError> {
        let ask =
            || async { self.connection.call(cmd).await.map_err(|error| request_error(&error)) };
        let answer = self.retry(ask, || command_name(cmd)).await;
        self.with_key_name(answer, || key_of(cmd)).await
    }

    /// Sends a request. If the request fails for a temporary reason, repeats it until it succeeds, or until
    /// `retry_timeout` has passed. If `retry_timeout` is `None`, the time is unlimited. The request must be safe to
    /// repeat.
    pub(super) async fn retry<F>(
        &self,
        ask: impl Fn() -> F,
        what: impl Fn() -> String,
    ) -> Result<Value, StoreError>
    where
        F: Future<Output = Result<Value, StoreError>>,
    {
        let mut backoff = RETRY_BACKOFF;
        let started = Instant::now();
        // Requests in progress at the same time can have the same name, so the name does not identify the request.
        let number = Some(self.retry_warnings.next_number());
        loop {
            let answer = ask().await;
            let Err(StoreError::Unavailable(reason)) = &answer else {
                self.retry_warnings.resolve(number, what);
                return answer;
            };
            if self.retry_timeout.is_some_and(|patience| started.elapsed() >= patience) {
                return answer;
            }
            self.retry_warnings.report(number, &what(), reason);
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Runs a script without retries: calls it by its digest or, if the server does not know the digest, by its text.
    pub(super) async fn run_script_once(
        &self,
        script: &LuaScript,
        call: &Cmd,
    ) -> RedisResult<Value> {
        run_script_on(&self.connection, script, call).await
    }

    /// Returns `answer`, with one exception: if a Redis key in `keys` has the wrong type, returns an error that names
    /// this key. The server's own error does not name the key.
    pub(super) async fn with_key_name<T>(
        &self,
        answer: Result<T, StoreError>,
        keys: impl FnOnce() -> Vec<String>,
    ) -> Result<T, StoreError> {
        match answer {
            Err(StoreError::Corrupt(words)) => Err(self.wrong_type_error(words, keys()).await),
            answer => answer,
        }
    }

    /// Returns an error that names the first Redis key in `keys` with a wrong type. If no key has a wrong type, returns
    /// an error with the text `words`.
    pub(super) async fn wrong_type_error(&self, words: String, keys: Vec<String>) -> StoreError {
        for key in keys {
            let Some(right) = type_of(&key) else { continue };
            let found = self.connection.call(cmd("TYPE").arg(&key)).await.ok().and_then(text);
            let Some(found) = found.filter(|found| found != right && found != "none") else {
                continue;
            };
            return StoreError::Corrupt(format!(
                "{key} is a {found}, but must be a {right}. Another program has written it: remove \
                 or rename it"
            ));
        }
        StoreError::Corrupt(words)
    }
}

/// Runs a script on a connection without retries: calls it by its digest or, if the server does not know the digest, by
/// its text.
pub(super) async fn run_script_on(
    connection: &RedisConnection,
    script: &LuaScript,
    call: &Cmd,
) -> RedisResult<Value> {
    match connection.call(call).await {
        Err(error) if has_code(&error, "NOSCRIPT") => {
            connection.call(&script.with_text(call)).await
        }
        answer => answer,
    }
}
