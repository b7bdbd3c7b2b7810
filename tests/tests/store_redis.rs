//! Tests of the store in Redis: the conformance suite on one server and on a Cluster, and tests with failing servers,
//! failing networks and damaged data.

mod store_redis {
    mod own;
    mod support;
    mod work;

    mod assigned;
    mod chains;
    mod damaged;
    mod damaged_beside;
    mod down;
    mod failover;
    mod foreign;
    mod forgotten;
    mod full;
    mod gone_back;
    mod half;
    mod hostile;
    mod killed;
    mod links;
    mod lost_replies;
    mod many;
    mod moved;
    mod refused;
    mod replicas;
    mod rights;
    mod tls;
    mod writers;

    mod alone {
        use super::support::Rig;

        ordain_tests::conformance_suite!(Rig::alone().await);
    }

    mod cluster {
        use super::support::Rig;

        ordain_tests::conformance_suite!(Rig::cluster().await);
    }
}
