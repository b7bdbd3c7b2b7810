//! Tests of the host without a broker, through its command line and its files: complete runs, starts that fail, and
//! recovery after a kill.

mod engine {
    mod admin;
    mod begins_anywhere;
    mod check;
    mod check_connect;
    mod checkpoint_redis;
    mod dead_letter;
    mod demo;
    mod disk;
    mod escaped_output;
    mod exactly_once;
    mod exactly_once_redis;
    mod far_ahead;
    mod full_disk;
    mod ingress_failures;
    mod keys_list;
    mod keys_why;
    mod printed_commands;
    mod project;
    mod publish_rollback;
    mod readme;
    mod reused_numbers;
    mod rotated_sinks;
    mod rotated_sources;
    mod run_alarms;
    mod run_changed;
    mod run_clock;
    mod run_damaged;
    mod run_environment;
    mod run_exit_codes;
    mod run_fifo;
    mod run_followed;
    mod run_full;
    mod run_handlers;
    mod run_lines;
    mod run_locations;
    mod run_many_keys;
    mod run_memory;
    mod run_redis;
    mod run_restart;
    mod run_rewritten;
    mod run_signals;
    mod run_sinks;
    mod run_stderr;
    mod run_stdio;
    mod run_terminal;
    mod run_types;
    mod scaled_object;
    mod sequencer;
    mod sequencer_ids;
    mod sequencer_rollback;
    mod sequencer_support;
    mod sequencer_types;
    mod server_settings;
}
