//! Tests of numbered messages, of messages that the store retains for replay, and of queues. An owner or a producer
//! assigns messages by a call of `MessageLog::assign`. In this call, the store gives the messages their numbers.

mod expiry;
mod lost_messages;
mod lost_numbers;
mod order;
mod producers;
mod queued_messages;
mod random_calls;
mod reader;
mod repeats;
mod sender;

pub(super) use sender::{Sender, chunk, data, message};

pub use expiry::{
    ended_key_gets_no_number_until_its_record_expires, numbering_starts_again_after_a_key_ended,
    numbers_of_an_ended_key_expire_with_its_record, retention_is_limited_in_number_and_time,
};
pub use lost_messages::{
    call_and_mark_are_refused_if_their_witness_is_lost, lost_message_gets_its_earlier_number,
    lost_messages_are_noticed_and_get_their_earlier_numbers,
    messages_of_lost_commits_are_forgotten,
};
pub use lost_numbers::{
    equal_event_with_another_id_gets_no_lost_number,
    lost_event_of_a_producer_gets_its_earlier_number_or_none,
    lost_numbers_are_given_again_to_the_same_events, lost_numbers_of_waiting_events_and_ended_keys,
};
pub use order::{each_group_of_a_call_has_its_own_reply, messages_are_numbered_in_order};
pub use producers::{
    json_of_a_producer_is_compared_as_json, number_below_a_waiting_dead_letter_is_not_given,
    number_of_another_producer_is_not_given_again, repeated_message_of_a_producer_is_recognized,
    source_and_id_identify_a_message,
};
pub use queued_messages::{
    messages_wait_in_order_until_removed, messages_without_numbers_are_queued,
};
pub use random_calls::{
    each_message_has_one_number_after_repeats_and_new_owners, random_calls_agree_with_the_model,
};
pub use repeats::{
    message_is_identified_by_its_commit_and_id, message_keeps_its_number_in_repeated_calls,
    messages_at_the_same_outbox_position_are_distinguished,
};
