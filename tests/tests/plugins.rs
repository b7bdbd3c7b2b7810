//! Handlers: how they are loaded, what they can reach, their limits, and their versions.

mod plugins {
    mod limits;
    mod load;
    mod new_version;
    mod pool;
    mod run_versions;
    mod sandbox;
}
