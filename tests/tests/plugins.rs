//! Tests of handlers: loading, the sandbox, limits and versions.

mod plugins {
    mod limits;
    mod load;
    mod lost_rollout;
    mod new_version;
    mod pool;
    mod run_versions;
    mod sandbox;
}
