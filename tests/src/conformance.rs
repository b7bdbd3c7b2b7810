//! The conformance suite, which every store must pass. Through the `Store` trait, the suite tests the guarantees that
//! the runtime needs.
//!
//! The tests of a store implement [`Fixture`], and call [`conformance_suite!`](crate::conformance_suite) once for each
//! kind of fixture, for example once for a single Redis server and once for a Cluster. The suite must use a store only
//! through its fixture.

pub mod concurrency;
pub mod due;
pub mod expiry;
pub mod fence;
pub mod ids;
pub mod isolation;
pub mod key_records;
pub mod leases;
pub mod letters;
pub mod listings;
pub mod numbering;
pub mod outbox;
mod owner;
pub mod queues;
pub mod random_commits;
pub mod rollback;
pub mod rollouts;
pub mod spill;
pub mod takeover;

pub use owner::{
    Owner, claim, commit_number, event, first_write, key_record, lease, next_write, record_write,
};

use ordain_store::Store;

/// The time for which the fixture's store keeps dead letters, in ms. The times in the suite are much longer than a test
/// takes, even on a slow machine. The duration of a test therefore does not change its result. A fixture may therefore
/// use a running clock, to which [`Fixture::advance_clock`] adds an offset.
pub const DEAD_TTL: u64 = 100_000;

/// A store under test, empty at first.
pub trait Fixture: Send {
    /// Returns the open store. The other methods of the fixture may replace this store.
    fn store(&self) -> &dyn Store;

    /// True if the store can write marks and remove outbox entries in one atomic write.
    const MARKS_WITH_OUTBOX: bool = true;

    /// True if a page of keys never has more rows than requested, and no key is on two pages.
    const PAGES_ARE_EXACT: bool = true;

    /// Advances the clock of the store by this number of ms.
    fn advance_clock(&mut self, ms: u64) -> impl Future<Output = ()> + Send;

    /// Closes the store and opens it again.
    fn reopen(&mut self) -> impl Future<Output = ()> + Send;

    /// Saves the present data of the store, as a backup or a replica does.
    fn take_snapshot(&mut self) -> impl Future<Output = ()> + Send;

    /// Sets the store back to the data that [`Self::take_snapshot`] saved last.
    fn go_back(&mut self) -> impl Future<Output = ()> + Send;

    /// Replaces the stored bytes of a key record with these bytes.
    fn overwrite_record(
        &mut self,
        stream: &str,
        key: &str,
        bytes: Vec<u8>,
    ) -> impl Future<Output = ()> + Send;
}

/// Generates one test for each case of the suite. In `conformance_suite!(open)`, each test calls `open()` to get its
/// own [`Fixture`].
#[macro_export]
macro_rules! conformance_suite {
    ($open:expr) => {
        $crate::conformance_suite!(@cases $open;
            key_records: key_is_absent_before_its_first_commit, committed_record_is_loaded,
                states_are_kept_replaced_and_deleted, every_field_is_loaded_as_written,
                gap_without_time_gets_the_time_of_its_commit,
                failed_condition_refuses_only_its_write,
                any_text_up_to_the_size_limit_is_accepted_as_key, load_stops_at_the_size_limit,
                damaged_record_affects_no_other_key, data_is_unchanged_after_reopening;
            fence: claim_has_a_higher_epoch_than_all_earlier_claims,
                commit_under_an_older_claim_is_fenced, commit_under_an_unknown_claim_is_rejected,
                commit_with_a_wrong_number_is_rejected, repeated_commit_gets_its_first_reply,
                repeated_commit_gets_its_first_reply_after_reopening,
                shards_number_their_commits_independently;
            spill: spilled_event_is_not_overwritten,
                store_numbered_spilled_event_is_compared_by_its_id,
                spilled_json_is_compared_as_json,
                large_sequences_are_distinguished,
                reads_return_exactly_the_remaining_events, read_stops_at_its_limits,
                settled_events_are_removed, missing_events_are_found;
            due: due_entries_are_returned_in_order_of_time, every_write_replaces_the_due_entry,
                load_returns_the_time_until_due;
            letters: letters_are_listed_in_order, letter_with_the_same_id_is_replaced,
                letters_of_consumed_events_are_removed, events_in_early_letters_are_found,
                search_for_large_events_names_its_end, early_letters_of_a_range_are_read,
                letters_expire_independently;
            outbox: entries_are_returned_in_order, refused_writes_add_no_messages,
                published_entries_are_removed_and_their_marks_written, marks_are_written_and_read,
                mark_is_replaced_only_if_unchanged, checkpoint_under_another_claim_is_refused,
                letters_are_forwarded_once;
            expiry: tombstone_is_loaded_until_it_expires,
                ended_key_starts_again_under_another_incarnation, last_write_determines_the_expiry,
                data_of_expired_key_never_reappears;
            takeover: loaded_key_moves_to_the_loading_partition,
                outdated_write_is_refused_after_the_key_returned, due_entry_moves_with_its_key;
            random_commits: store_agrees_with_the_model;
            ids: ids_below_the_window_are_forgotten, age_of_id_starts_with_its_commit;
            isolation: streams_share_no_data, partitions_of_a_stream_share_only_its_keys;
            leases: lease_has_only_one_holder, claim_with_an_older_lease_is_rejected,
                heartbeats_return_each_change_once, removed_instance_loses_its_leases,
                instance_without_heartbeat_loses_its_leases,
                instances_keep_their_leases_after_an_outage,
                heartbeat_of_expired_instance_changes_the_table,
                instances_that_end_one_after_another_are_removed;
            rollouts: rollout_based_on_an_outdated_one_is_refused,
                rollout_reaches_running_and_later_instances,
                instances_agree_after_a_rollout_was_lost, commit_under_an_older_rollout_is_refused;
            numbering: messages_are_numbered_in_order, message_keeps_its_number_in_repeated_calls,
                messages_at_the_same_outbox_position_are_distinguished,
                message_is_identified_by_its_commit_and_id, messages_of_lost_commits_are_forgotten,
                lost_message_gets_its_earlier_number, each_group_of_a_call_has_its_own_reply,
                numbering_starts_again_after_a_key_ended, retention_is_limited_in_number_and_time,
                repeated_message_of_a_producer_is_recognized,
                json_of_a_producer_is_compared_as_json,
                source_and_id_identify_a_message, number_of_another_producer_is_not_given_again,
                number_below_a_waiting_dead_letter_is_not_given,
                lost_numbers_are_given_again_to_the_same_events,
                lost_numbers_of_waiting_events_and_ended_keys,
                equal_event_with_another_id_gets_no_lost_number,
                lost_event_of_a_producer_gets_its_earlier_number_or_none,
                numbers_of_an_ended_key_expire_with_its_record,
                ended_key_gets_no_number_until_its_record_expires,
                messages_wait_in_order_until_removed, messages_without_numbers_are_queued,
                each_message_has_one_number_after_repeats_and_new_owners,
                random_calls_agree_with_the_model,
                lost_messages_are_noticed_and_get_their_earlier_numbers,
                call_and_mark_are_refused_if_their_witness_is_lost;
            queues: lost_position_is_refused_after_its_number_is_reused,
                removal_is_refused_if_its_commit_is_lost,
                only_positions_of_the_present_history_are_accepted,
                lost_calls_of_a_writer_are_reported;
            rollback: lost_letters_are_written_again,
                removed_letters_reappear_until_the_commit_is_repeated,
                lost_letters_are_forwarded_again, lost_removals_from_the_outbox_can_be_repeated,
                lost_spills_are_repeated_with_their_commit, due_entries_roll_back_with_their_commit,
                marks_roll_back_and_checkpoint_of_lost_claim_is_refused, lost_lease_gives_no_rights,
                claim_with_a_lost_lease_raises_the_next_epoch, repeated_commits_restore_all_data;
            concurrency: partitions_commit_concurrently,
                each_applied_commit_advances_the_key_by_one_event;
            listings: pages_return_every_key_of_the_stream, keys_are_filtered_by_status_and_prefix,
                damaged_record_is_listed_with_the_reason, every_stream_with_data_is_listed,
                foreign_cursors_are_refused;
        );
    };
    (@cases $open:expr; $($module:ident: $($case:ident),+;)+) => {
        $(mod $module {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                let mut fixture = $open;
                $crate::conformance::$module::$case(&mut fixture).await;
            })+
        })+
    };
}
