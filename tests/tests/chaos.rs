//! Chaos tests. A producer loses, repeats, delays and shuffles events. Meanwhile `kill -9` ends hosts, their store and
//! the broker at random moments. Hosts join, leave and pause. Links between a host and the servers are cut, become slow
//! or silent, or lose replies. At the end of each round, the test counts the effects in the output of the hosts and in
//! the store. The counting code is independent of the code of the host. Its only inputs are the output, the list of the
//! sent events, and the store, which the test reads by the commands `ordain keys list` and `ordain dead list`.
//!
//! In other rounds, Redis loses its newest writes while one to four hosts run (`rollbacks.rs`). In some of these
//! rounds, the test also kills hosts. Each round draws at random how its events reach the hosts: over HTTP, through the
//! inbox, through a chain of two streams, from a file by `ordain publish`, or from RabbitMQ (`routes.rs`). The test
//! compares the losses that the hosts report with the events of each shard (`losses.rs`). On the routes of `ordain
//! publish`, no event may be lost, and no loss may be reported.
//!
//! Six more files contain other rounds. In `split.rs`, a network split separates a master from the Sentinel. The events
//! arrive on all routes of `routes.rs`, and the test compares the reported losses as in `rollbacks.rs`. In
//! `removed.rs`, single keys or all keys of Redis are removed. In `folder.rs`, the folder of an embedded store is moved
//! away and restored. In `names.rs`, the host name of the servers does not resolve. In the rounds of `removed.rs`,
//! `folder.rs` and `names.rs`, the events arrive on all routes except those of `ordain publish`. In `operator.rs`, the
//! operator of RabbitMQ makes mistakes: the broker loses exchanges, bindings, queues or its virtual host, drops
//! messages, refuses the hosts, or ends. The events arrive from RabbitMQ. In `rotation.rs`, the events arrive from a
//! file, and the files of the source and the sink are rotated.
//!
//! Three environment variables control the test. `ORDAIN_CHAOS_SEED` sets the seed, and `ORDAIN_CHAOS_ROUND` sets the
//! first round. The test plays rounds until `ORDAIN_CHAOS_SECONDS` seconds have passed, and at least one round. The
//! seed and the round determine the sent events, the settings of the hosts, and the delays between faults. The number
//! of faults in a round, and in most kinds of rounds the number of events, also depends on the speed of the machine.

mod chaos {
    mod check;
    mod effects;
    mod event_target;
    mod events;
    mod fleet;
    mod folder;
    mod host;
    mod losses;
    mod names;
    mod operator;
    mod plan;
    mod receiver;
    mod removed;
    mod rollbacks;
    mod rotation;
    mod round_hosts;
    mod routes;
    mod split;
    mod world;

    use std::time::{Duration, Instant};

    use anyhow::{Context as _, Result};
    use ordain_tests::lossy::LossyServers;
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    use check::check;
    use plan::Plan;
    use world::World;

    /// The number of rounds that share one broker, one store and one configuration.
    const ROUNDS: u32 = 5;

    fn number(name: &str) -> Result<Option<u64>> {
        let text = std::env::var(name).ok();
        text.map(|text| text.parse().with_context(|| format!("{name}={text}"))).transpose()
    }

    /// The uses of randomness. Each use has its own random generator. So a change in the number of draws for one use
    /// does not change the draws for another use.
    #[derive(Clone, Copy)]
    enum RandomUse {
        Settings,
        Plan,
        Disturbance,
    }

    impl RandomUse {
        fn random(self, seed: u64, number: u32) -> ChaCha8Rng {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(u64::from(number) << 8 | self as u64);
            random
        }
    }

    fn rounds(with_redis: bool) -> Result<()> {
        let seed = number("ORDAIN_CHAOS_SEED")?.unwrap_or_else(rand::random);
        let first = number("ORDAIN_CHAOS_ROUND")?.map_or(Ok(0), u32::try_from)?;
        let time = Duration::from_secs(number("ORDAIN_CHAOS_SECONDS")?.unwrap_or(0));
        println!("seed {seed} (ORDAIN_CHAOS_SEED={seed} reuses it)");
        let started = Instant::now();
        let new_world =
            |round| World::new(with_redis, &mut RandomUse::Settings.random(seed, round / ROUNDS));
        let mut world = new_world(first)?;
        for round in first.. {
            if round > first && round % ROUNDS == 0 {
                world = new_world(round)?;
            }
            let plan = Plan::new(round, &mut RandomUse::Plan.random(seed, round));
            let mut disturbance = RandomUse::Disturbance.random(seed, round);
            let done = world.play(&plan, &mut disturbance).and_then(|()| check(&mut world, &plan));
            let counted = done.with_context(|| {
                let again = format!("ORDAIN_CHAOS_SEED={seed} ORDAIN_CHAOS_ROUND={round}");
                format!("{again} repeats it: {}\n{}", world.disturbance_summary(), world.logs())
            })?;
            println!(
                "{:>5.0?} round {round}: {counted}; {}",
                started.elapsed(),
                world.disturbance_summary()
            );
            if started.elapsed() >= time {
                break;
            }
        }
        Ok(())
    }

    fn rounds_of(play: impl Fn(&mut ChaCha8Rng) -> Result<String>) -> Result<()> {
        let seed = number("ORDAIN_CHAOS_SEED")?.unwrap_or_else(rand::random);
        let first = number("ORDAIN_CHAOS_ROUND")?.map_or(Ok(0), u32::try_from)?;
        let time = Duration::from_secs(number("ORDAIN_CHAOS_SECONDS")?.unwrap_or(0));
        println!("seed {seed} (ORDAIN_CHAOS_SEED={seed} reuses it)");
        let started = Instant::now();
        for round in first.. {
            let summary = play(&mut RandomUse::Disturbance.random(seed, round));
            let summary = summary.with_context(|| {
                format!("ORDAIN_CHAOS_SEED={seed} ORDAIN_CHAOS_ROUND={round} repeats it")
            })?;
            println!("{:>5.0?} round {round}: {summary}", started.elapsed());
            if started.elapsed() >= time {
                break;
            }
        }
        Ok(())
    }

    /// The test kills Redis and restores an earlier copy of its data. `rollbacks.rs` states the requirements.
    #[test]
    fn on_a_redis_that_goes_back() -> Result<()> {
        rounds_of(|random| rollbacks::play(LossyServers::single()?, random))
    }

    /// A Sentinel promotes a replica that lacks the newest writes. `rollbacks.rs` states the requirements.
    #[test]
    fn on_sentinel_with_a_replica_that_lags() -> Result<()> {
        rounds_of(|random| rollbacks::play(LossyServers::watched()?, random))
    }

    /// A network split separates a master from the Sentinel and from its replica. `split.rs` states the requirements.
    #[test]
    fn on_sentinel_that_splits() -> Result<()> {
        rounds_of(split::play)
    }

    /// In a Cluster, replicas that lack the newest writes become masters. `rollbacks.rs` states the requirements.
    #[test]
    fn on_a_cluster_with_replicas_that_lag() -> Result<()> {
        rounds_of(|random| rollbacks::play(LossyServers::shared()?, random))
    }

    #[test]
    fn on_a_redis_without_some_keys() -> Result<()> {
        rounds_of(removed::play)
    }

    #[test]
    fn on_a_folder_that_is_moved_and_restored() -> Result<()> {
        rounds_of(folder::play)
    }

    #[test]
    fn on_files_that_are_rotated() -> Result<()> {
        rounds_of(rotation::play)
    }

    #[test]
    fn on_servers_whose_name_does_not_resolve() -> Result<()> {
        rounds_of(names::play)
    }

    /// The operator of RabbitMQ makes several mistakes. `operator.rs` states the requirements.
    #[test]
    fn on_a_broker_whose_operator_errs() -> Result<()> {
        rounds_of(operator::play)
    }

    #[test]
    fn on_redis() -> Result<()> {
        rounds(true)
    }

    #[test]
    fn on_the_embedded_store() -> Result<()> {
        rounds(false)
    }
}
