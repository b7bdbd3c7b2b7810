//! New versions of handlers while the host runs.

mod swap {
    mod files;
    mod several;
    mod support;
    mod under_load;
}
