//! Tests of handlers: how they are loaded, their sandbox, their limits and their versions.

mod plugins {
    mod changed_limit;
    mod limits;
    mod load;
    mod lost_rollout;
    mod new_version;
    mod pool;
    mod run_versions;
    mod sandbox;
    mod wrap;
}
