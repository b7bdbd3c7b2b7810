//! The conformance suite of all stores. It tests the guarantees that the runtime needs, through the `Store` trait.
//!
//! The tests of a store implement [`Fixture`] and call [`conformance_suite!`](crate::conformance_suite) once. The suite
//! must use a store only through its fixture.

pub mod chains;
pub mod due;
pub mod expiry;
pub mod fence;
pub mod history;
pub mod ids;
pub mod jobs;
pub mod keys;
pub mod leases;
pub mod letters;
pub mod listings;
pub mod outbox;
mod owner;
pub mod queues;
pub mod rewound;
pub mod spill;
pub mod takeover;
pub mod together;
pub mod versions;

pub use owner::{Owner, absent, claim, event, fresh, job, lease, next, number_of};

use ordain_store::Store;

/// The time for which the fixture's store keeps dead letters, in ms. All times in the suite are much longer than a case
/// takes on a slow machine. A fixture may therefore use a running clock, to which [`Fixture::pass`] adds an offset.
pub const DEAD_TTL: u64 = 100_000;

/// A store under test, empty at first.
pub trait Fixture: Send {
    /// Returns the store.
    fn store(&self) -> &dyn Store;

    /// True if the store can write marks and remove outbox entries in one atomic write.
    const MARKS_WITH_OUTBOX: bool = true;

    /// True if a page of keys never has more rows than requested, and no key is on two pages.
    const PAGES_ARE_EXACT: bool = true;

    /// Advances the store's time by this number of ms.
    fn pass(&mut self, ms: u64) -> impl Future<Output = ()> + Send;

    /// Closes the store and opens it again.
    fn reopen(&mut self) -> impl Future<Output = ()> + Send;

    /// Saves the present data of the store, as a backup or a replica does.
    fn remember(&mut self) -> impl Future<Output = ()> + Send;

    /// Returns the store to the data that [`Self::remember`] saved last.
    fn go_back(&mut self) -> impl Future<Output = ()> + Send;

    /// Replaces the stored bytes of a key record with these bytes.
    fn garble(
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
            jobs: a_new_key_is_absent, a_commit_is_loaded_back, states_are_kept_put_and_deleted,
                every_field_comes_back, gaps_have_the_time_of_their_commit, conditions_are_checked_key_by_key, keys_of_all_kinds,
                a_load_ends_where_it_has_enough, a_damaged_job_is_refused_alone,
                everything_is_there_after_reopening;
            fence: a_claim_is_higher_than_all_before, an_older_claim_is_fenced,
                another_claim_of_the_epoch_is_rewound, numbers_have_no_holes,
                a_lost_answer_is_given_again, a_lost_answer_survives_reopening,
                shards_have_fences_of_their_own;
            spill: events_are_put_if_absent, large_sequences_are_told_apart, what_is_left_is_read,
                ranges_are_read_within_limits, settled_events_are_removed,
                missing_events_are_found;
            due: entries_come_when_due, entries_move_and_go, a_load_tells_the_time_left;
            letters: letters_are_listed_in_order, a_letter_replaces_its_like,
                consumed_letters_are_gone, far_ahead_letters_are_found, letters_grow_old;
            outbox: entries_come_in_order, refused_writes_publish_nothing,
                done_entries_are_gone_with_their_marks, marks_are_put_and_read,
                a_checkpoint_names_its_claim,
                letters_are_forwarded_once;
            expiry: a_tombstone_ends, an_ended_key_is_born_again, writing_puts_expiry_off,
                nothing_of_an_expired_key_is_left;
            takeover: loading_takes_a_job_over, a_key_that_came_back_is_not_the_same,
                a_due_entry_moves_along;
            history: a_store_is_what_was_written;
            ids: ids_are_remembered_from_the_window_on, ids_grow_old_by_the_time_of_their_commit;
            keys: streams_do_not_meet, partitions_do_not_meet;
            leases: a_lease_is_one_instances, a_claim_has_the_epoch_of_its_lease,
                changes_are_told_once, a_forgotten_instance_has_nothing,
                silent_instances_are_forgotten, an_outage_takes_nothing_from_anybody,
                one_that_is_back_is_told, the_dead_stay_dead;
            versions: one_decides_at_a_time, decisions_are_told_and_stay,
                a_lost_rollout_is_decided_again, an_older_decision_commits_nothing;
            chains: messages_are_numbered_in_order, a_message_has_one_number,
                a_place_may_have_other_messages, a_commit_may_be_given_in_other_parts, an_outbox_may_have_lost_commits,
                what_is_given_again_keeps_its_number,
                owners_give_together, an_ended_count_is_forgotten,
                messages_are_kept_for_a_while, a_producer_is_known_by_ids,
                messages_wait_for_their_stream, messages_may_wait_without_numbers,
                numbers_hold_through_crashes, a_model_says_the_same;
            queues: places_are_of_one_history, a_removal_names_the_commit_that_it_rests_on,
                places_hold_through_many_histories, lost_calls_of_a_writer_are_known;
            rewound: lost_letters_are_written_again, removed_letters_are_back_until_the_repetition,
                lost_letters_are_forwarded_again, lost_removals_from_the_outbox_are_made_again,
                lost_spills_are_made_again, due_entries_go_back_with_their_commit,
                marks_go_back_and_checkpoints_name_their_claim, leases_of_the_lost_time_are_unknown,
                a_late_claim_raises_the_next_lease, repeated_commits_make_the_store_whole;
            together: partitions_commit_side_by_side, a_key_has_one_writer_at_a_time;
            listings: keys_are_listed_by_page, keys_are_filtered, a_damaged_job_is_listed,
                streams_are_listed, foreign_cursors_are_refused;
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
