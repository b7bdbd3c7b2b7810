//! Chaos: a producer that loses, repeats, delays and shuffles events, while the host, its store and
//! the broker are killed by `kill -9` at random moments. At the end of each round all is counted
//! from what came out and from what the store has, by code that knows only what was sent.
//!
//! `ORDAIN_CHAOS_SEED` uses a seed again, and `ORDAIN_CHAOS_SECONDS` goes on with more rounds for
//! so long. The moments are of the seed; what the machine does meanwhile is not.

mod chaos {
    mod check;
    mod plan;
    mod world;

    use std::time::{Duration, Instant};

    use anyhow::{Context as _, Result};
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    use check::check;
    use plan::Plan;
    use world::World;

    fn number(name: &str) -> Result<Option<u64>> {
        let text = std::env::var(name).ok();
        text.map(|text| text.parse().with_context(|| format!("{name}={text}"))).transpose()
    }

    fn rounds(with_redis: bool) -> Result<()> {
        let seed = number("ORDAIN_CHAOS_SEED")?.unwrap_or_else(rand::random);
        let time = Duration::from_secs(number("ORDAIN_CHAOS_SECONDS")?.unwrap_or(0));
        println!("seed {seed} (ORDAIN_CHAOS_SEED={seed} uses it again)");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let started = Instant::now();
        let mut world = World::new(with_redis, &mut random)?;
        for round in 1.. {
            let plan = Plan::new(round, &mut random);
            let done = world.play(&plan, &mut random).and_then(|()| check(&mut world, &plan));
            let counted = done.with_context(|| {
                format!("seed {seed}, round {round}, {}\n{}", world.told(), world.logs())
            })?;
            println!("{:>5.0?} round {round}: {counted}; {}", started.elapsed(), world.told());
            if started.elapsed() >= time {
                break;
            }
        }
        Ok(())
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
