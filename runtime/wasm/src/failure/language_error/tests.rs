//! The texts are the output of components that the compilers of these languages built.

use super::LanguageError;

fn check(stderr: &str, message: &str) {
    assert_eq!(LanguageError::find(stderr).uncaught(), message);
}

#[test]
fn rust_panic_keeps_its_place_and_its_message() {
    check(
        "a line of its own\n\nthread '<unnamed>' (1) panicked at src/lib.rs:7:9:\nno such order: 17\nnote: run with \
         `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
        "panicked at src/lib.rs:7:9: no such order: 17",
    );
    check(
        "panicked at src/lib.rs:20:20:\nfailed on purpose 💥\n",
        "panicked at src/lib.rs:20:20: failed on purpose 💥",
    );
}

#[test]
fn text_of_an_unknown_form_is_kept() {
    check("failed on purpose 💥\n", "uncaught error: failed on purpose 💥");
}

const PYTHON_PANIC: &str = "\n\nthread '<unnamed>' (1) panicked at runtime/src/lib.rs:1293:29:\nPython function threw \
                            an unexpected exception\nnote: run with `RUST_BACKTRACE=1` environment variable to \
                            display a backtrace\n";

#[test]
fn python_traceback_precedes_the_panic_of_the_runtime() {
    let traceback = "Traceback (most recent call last):\n  File \"/0/app.py\", line 17, in handle\nRuntimeError: failed \
                     to throw 💥";
    check(
        &format!("WARNING:root:low\n{traceback}{PYTHON_PANIC}"),
        &format!("uncaught error: {traceback}"),
    );
    check(&format!("{traceback}\n"), &format!("uncaught error: {traceback}"));
}

#[test]
fn python_traceback_keeps_its_causes_but_no_earlier_traceback() {
    let cause = "Traceback (most recent call last):\n  File \"/0/app.py\", line 5, in handle\nKeyError: 'a'";
    let link = "During handling of the above exception, another exception occurred:";
    let last = "Traceback (most recent call last):\n  File \"/0/app.py\", line 7, in handle\nValueError: no order";
    check(
        &format!("{cause}\n\n{link}\n\n{last}{PYTHON_PANIC}"),
        &format!("uncaught error: {cause}\n\n{link}\n\n{last}"),
    );
    check(&format!("{cause}\nignored\n{last}{PYTHON_PANIC}"), &format!("uncaught error: {last}"));
}

#[test]
fn python_traceback_without_its_beginning_is_kept_without_the_panic() {
    let rest = "printed\n… 700 bytes are left out …\n  File \"/0/app.py\", line 7, in handle\nValueError: no order";
    check(&format!("{rest}{PYTHON_PANIC}"), &format!("uncaught error: {rest}"));
}

#[test]
fn spidermonkey_error_is_reported_without_the_generated_code() {
    let noise = "\nStack:\n  export_handler_0_1_0$handle@/tmp/d220a38f0be6/sources/initializer.js:445:17\n\nRedirecting \
                 call to abort() to mozalloc_abort\n\n";
    let thrown = "invalid variant tag value `undefined` (received `Error: failed on \"purpose\" ☃ 💥\nsecond line`) \
                  specified for `Failure`";
    check(
        &format!("{thrown}{noise}"),
        "uncaught error: Error: failed on \"purpose\" ☃ 💥\nsecond line",
    );
    let recursion = "invalid variant tag value `undefined` (received `InternalError: too much recursion`) specified \
                     for `Failure`";
    check(
        &format!("noticed\n{recursion}{noise}"),
        "uncaught error: InternalError: too much recursion",
    );
    let written = "Error: failed on \"purpose\" ☃ 💥\nsecond line\nboom@src/account.js:3:9\n";
    check(&format!("{written}{thrown}{noise}"), &format!("uncaught error: {}", written.trim_end()));
    let wrong_result = "can't access property \"tag\", variant17 is undefined";
    check(&format!("{wrong_result}{noise}"), &format!("uncaught error: {wrong_result}"));
}

#[test]
fn quickjs_error_is_reported_without_escapes() {
    check(
        "\nthread '<unnamed>' (1) panicked at crates/runtime/src/interpreter.rs:51:31:\nFailed to call 'handle': \
         Value(Exception(\nException { message: Some(\"failed on \\\"purpose\\\" ☃ \\u{1f4a5}\\nsecond line\"), stack: \
         Some(\"    at boom (componentize-qjs:user.js:1:46)\\n    at handle (componentize-qjs:user.js:8:8)\\n\") })\n)\n\
         note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
        "uncaught error: failed on \"purpose\" ☃ 💥\nsecond line\n    at boom (componentize-qjs:user.js:1:46)\n    at \
         handle (componentize-qjs:user.js:8:8)",
    );
    // A value that is neither an error nor a failure.
    check(
        "\nthread '<unnamed>' (1) panicked at crates/runtime/src/call.rs:283:18:\ninvalid variant: Error(FromJs { from: \
         \"string\", to: \"variant\", message: None })\nnote: run with `RUST_BACKTRACE=1` environment variable",
        "panicked at crates/runtime/src/call.rs:283:18: invalid variant: Error(FromJs { from: \"string\", to: \
         \"variant\", message: None })",
    );
}

#[test]
fn go_panic_keeps_the_stack() {
    let panic = "panic: failed on purpose 💥\n\ngoroutine 1 [running]:\nmain.account(0x1)\n\t/account/main.go:28 +0x5";
    check(&format!("printed\n{panic}\n"), &format!("uncaught error: {panic}"));
    let deadlock = "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [chan receive]:\nmain.main()";
    check(deadlock, &format!("uncaught error: {deadlock}"));
}
