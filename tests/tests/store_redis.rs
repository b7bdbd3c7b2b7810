//! Tests of the store in Redis: the conformance suite on one server and on a Cluster, and tests of failing servers,
//! failing networks, damaged data, rights of users, and TLS.

mod store_redis {
    mod dedicated;
    mod support;
    mod work;

    mod assigned;
    mod chains;
    mod clock;
    mod damaged;
    mod damaged_values;
    mod failover;
    mod flushed_scripts;
    mod foreign;
    mod full;
    mod hostile;
    mod killed;
    mod large_data;
    mod links;
    mod listings;
    mod lost_replies;
    mod moved_slots;
    mod partial_commit;
    mod refused;
    mod replicas;
    mod rights;
    mod rollback;
    mod tls;
    mod unavailable_master;
    mod writers;

    mod single_server {
        use super::support::Rig;

        ordain_tests::conformance_suite!(Rig::single().await);
    }

    mod cluster {
        use super::support::Rig;

        ordain_tests::conformance_suite!(Rig::cluster().await);
    }
}
