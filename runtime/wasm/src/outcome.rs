//! Checks a handler's reply against the limits for replies, and converts the reply into the effect that is committed.

mod message;

use ordain_core::{
    Event, FailedAttempt, FailureKind, HandlerLimit, Message, MessageParts, StateUpdate,
};

use super::failure::{LimitExceeded, cut_reason};
use super::settings::{DisplaySize, HandlerLimits};
use super::stream::StreamContext;
use super::wire::{HandleReply, MessageReply, OutcomeReply, RefusalReply, StateChange};
use ordain_config::RoutingKeyTemplate;

/// The header that continues a trace and identifies the parent span.
const TRACE_PARENT_HEADER: &str = "traceparent";
/// The header with additional data of the trace. It accompanies [`TRACE_PARENT_HEADER`].
const TRACE_STATE_HEADER: &str = "tracestate";

/// The result of an event that did not fail.
pub(super) enum AcceptedReply {
    Effect { state: StateUpdate, messages: Vec<Message>, complete: bool },
    Rejected(String),
}

/// Checks a reply against the limits and the requirements for messages. Returns a failure if the reply requests a
/// retry, exceeds a limit or contains an invalid message. The failure names only the first fault.
pub(super) fn accept(
    reply: HandleReply,
    event: &Event,
    stream: &StreamContext,
    limits: &HandlerLimits,
) -> Result<AcceptedReply, FailedAttempt> {
    match reply {
        Ok(outcome) => {
            let OutcomeReply { state, messages, complete } = outcome;
            let state = accept_state(state, limits)?;
            let messages = accept_messages(&messages, event, stream, limits)?;
            Ok(AcceptedReply::Effect { state, messages, complete })
        }
        Err(RefusalReply::Reject(words)) => Ok(AcceptedReply::Rejected(cut_reason(words))),
        Err(RefusalReply::Retry(info)) => Err(FailedAttempt {
            kind: FailureKind::Retry,
            limit: None,
            message: cut_reason(info.reason),
            after_ms: info.after_ms,
        }),
    }
}

fn accept_state(state: StateChange, limits: &HandlerLimits) -> Result<StateUpdate, FailedAttempt> {
    match state {
        StateChange::Keep => Ok(StateUpdate::Keep),
        StateChange::Delete => Ok(StateUpdate::Delete),
        StateChange::Put(state) if state.len() > limits.state_size => {
            let words = format!(
                "the new state has {}; `plugins.state_size` allows {}",
                DisplaySize(state.len()),
                DisplaySize(limits.state_size),
            );
            Err(limit_failure(HandlerLimit::StateSize, words))
        }
        StateChange::Put(state) => Ok(StateUpdate::Put(state.into())),
    }
}

fn accept_messages(
    replies: &[MessageReply],
    event: &Event,
    stream: &StreamContext,
    limits: &HandlerLimits,
) -> Result<Vec<Message>, FailedAttempt> {
    if replies.len() > limits.messages {
        let words = format!(
            "the handler emitted {} messages; `plugins.messages` allows {} for one event",
            replies.len(),
            limits.messages,
        );
        return Err(limit_failure(HandlerLimit::Messages, words));
    }
    let mut messages = Vec::with_capacity(replies.len());
    let mut size = 0;
    for (index, reply) in replies.iter().enumerate() {
        if !stream.has_sink(&reply.sink) {
            return Err(limit_failure(
                HandlerLimit::Sinks,
                unknown_sink(index, &reply.sink, stream),
            ));
        }
        let wrong = |limit: Option<HandlerLimit>, what: String| -> FailedAttempt {
            let words = format!("message {index}, to the sink `{}`, has {what}", reply.sink);
            LimitExceeded { limit, message: words }.into()
        };
        message::check(reply).map_err(|what| wrong(None, what))?;
        let key = reply.key.as_deref().unwrap_or(event.key());
        if let Some(size) = stream.routing_key_too_long(reply, key) {
            let limit = RoutingKeyTemplate::LIMIT_BYTES;
            let what = format!("a routing key of {size} bytes; AMQP allows {limit}");
            return Err(wrong(None, what));
        }
        let message = build_message(reply, event);
        message::check_size(&message, limits.event_size)
            .map_err(|what| wrong(Some(HandlerLimit::EventSize), what))?;
        size += message.memory();
        messages.push(message);
    }
    if size > limits.messages_size {
        let words = format!(
            "the messages have {} together; `plugins.messages_size` allows {} for one event",
            DisplaySize(size),
            DisplaySize(limits.messages_size),
        );
        return Err(limit_failure(HandlerLimit::MessagesSize, words));
    }
    Ok(messages)
}

fn build_message(reply: &MessageReply, event: &Event) -> Message {
    let mut headers: Vec<(&str, &str)> =
        reply.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(TRACE_PARENT_HEADER)) {
        headers.extend(event.headers().filter(|(name, _)| {
            name.eq_ignore_ascii_case(TRACE_PARENT_HEADER)
                || name.eq_ignore_ascii_case(TRACE_STATE_HEADER)
        }));
    }
    Message::new(&MessageParts {
        sink: &reply.sink,
        key: reply.key.as_deref(),
        kind: &reply.kind,
        content_type: &reply.content_type,
        headers: &headers,
        data: &reply.data,
        delay_ms: reply.delay_ms,
        end: reply.end,
    })
}

fn unknown_sink(index: usize, sink: &str, stream: &StreamContext) -> String {
    let known: Vec<_> = stream.sinks().map(|sink| format!("`{sink}`")).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let sink = cut_reason(sink.to_owned());
    format!(
        "message {index} names the sink `{sink}`, which is not configured; configured sinks: {known}"
    )
}

fn limit_failure(limit: HandlerLimit, words: String) -> FailedAttempt {
    LimitExceeded { limit: Some(limit), message: words }.into()
}
