//! The types of `wit/handler.wit` in the form in which their values pass between the host and a guest (the WebAssembly
//! code of a handler). The values are borrowed on the way to the guest, and owned on the way back to the host. This
//! module must never validate a value; `outcome` validates values.
//!
//! The types are written by hand instead of generated. The host can therefore pass an event to the guest without
//! copying the event first. Each type has code only for the direction in which it passes.
#![allow(unsafe_code, reason = "the derive macros of Wasmtime generate unsafe impls")]

use wasmtime::component::{ComponentType, Lift, Lower, TypedFunc};

/// The arguments of `handle`: the event and the state before the event.
pub(super) type HandleArgs<'a> = (EventArg<'a>, Option<&'a [u8]>);

/// The result of `handle`.
pub(super) type HandleReply = Result<OutcomeReply, RefusalReply>;

/// The guest's function `handle`.
pub(super) type HandleFunc<'a> = TypedFunc<HandleArgs<'a>, (HandleReply,)>;

/// A header's name and value.
pub(super) type HeaderArg<'a> = (&'a str, &'a str);

#[derive(ComponentType, Lower)]
#[component(record)]
pub(super) struct EventArg<'a> {
    pub(super) stream: &'a str,
    pub(super) key: &'a str,
    pub(super) sequence: u64,
    pub(super) id: &'a str,
    #[component(name = "type")]
    pub(super) kind: &'a str,
    pub(super) source: &'a str,
    #[component(name = "time-ms")]
    pub(super) time_ms: Option<u64>,
    #[component(name = "content-type")]
    pub(super) content_type: &'a str,
    pub(super) headers: &'a [HeaderArg<'a>],
    pub(super) data: &'a [u8],
    #[component(name = "end-of-sequence")]
    pub(super) end: bool,
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(super) struct OutcomeReply {
    pub(super) state: StateChange,
    pub(super) messages: Vec<MessageReply>,
    pub(super) complete: bool,
}

#[derive(ComponentType, Lift)]
#[component(variant)]
pub(super) enum StateChange {
    #[component(name = "keep")]
    Keep,
    #[component(name = "put")]
    Put(Vec<u8>),
    #[component(name = "delete")]
    Delete,
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(super) struct MessageReply {
    pub(super) sink: String,
    pub(super) key: Option<String>,
    #[component(name = "type")]
    pub(super) kind: String,
    #[component(name = "content-type")]
    pub(super) content_type: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) data: Vec<u8>,
    #[component(name = "delay-ms")]
    pub(super) delay_ms: Option<u64>,
    #[component(name = "end-of-sequence")]
    pub(super) end: bool,
}

#[derive(ComponentType, Lift)]
#[component(variant)]
pub(super) enum RefusalReply {
    #[component(name = "retry")]
    Retry(RetryReply),
    #[component(name = "reject")]
    Reject(String),
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(super) struct RetryReply {
    pub(super) reason: String,
    #[component(name = "after-ms")]
    pub(super) after_ms: Option<u64>,
}

#[expect(dead_code, reason = "lifting, which copies a value from the guest, creates the variants")]
#[derive(ComponentType, Lift, Clone, Copy)]
#[component(enum)]
#[repr(u8)]
pub(super) enum LogLevel {
    #[component(name = "trace")]
    Trace,
    #[component(name = "debug")]
    Debug,
    #[component(name = "info")]
    Info,
    #[component(name = "warn")]
    Warn,
    #[component(name = "error")]
    Error,
}
