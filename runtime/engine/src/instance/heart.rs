//! Says that this instance runs, and learns who else does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ordain_core::Build;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::sleep;

use ordain_store::About;
use ordain_store::Reach;
use ordain_store::tenure::{Tenure, Until};
use ordain_store::{Beat, Beaten, Generation, InstanceId, Partition, Store, StoreError, Table};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait;

/// Between two beats: what others give back is taken over that soon.
const EVERY: Duration = Duration::from_millis(250);
/// Time between two warnings that the store does not take the beat.
const WARN_INTERVAL: Duration = Duration::from_secs(30);

/// The heart of a running instance. Dropping it stops it, and the leases run out.
pub(crate) struct Heart {
    id: InstanceId,
    about: watch::Sender<About>,
    report: watch::Sender<Option<String>>,
    soon: Arc<Notify>,
    table: watch::Receiver<News>,
    until: watch::Receiver<Until>,
    tenures: Tenures,
    beating: JoinHandle<()>,
}

/// What a part of this process says to the other instances, and learns of them.
#[derive(Clone)]
pub(crate) struct Membership {
    id: InstanceId,
    about: watch::Sender<About>,
    soon: Arc<Notify>,
    table: watch::Receiver<News>,
}

impl Membership {
    /// Says which handler versions are here, by stream.
    pub(crate) fn offer(&self, offers: BTreeMap<String, Build>) {
        self.about.send_if_modified(|about| {
            let is_new = about.offers != offers;
            about.offers = offers;
            is_new
        });
    }

    /// Beats now: something has changed.
    pub(crate) fn beat_soon(&self) {
        self.soon.notify_one();
    }

    /// The newest table.
    pub(crate) fn table(&mut self) -> Arc<Table> {
        Arc::clone(&self.table.borrow_and_update().table)
    }

    /// Which instance this is.
    pub(crate) fn id(&self) -> InstanceId {
        self.id
    }

    /// Waits until there is another table than at the last time.
    pub(crate) async fn changed(&mut self) {
        if self.table.changed().await.is_err() {
            // The heart has stopped.
            std::future::pending::<()>().await;
        }
    }
}

/// The newest table, and when it was asked for.
#[derive(Debug, Clone)]
struct News {
    asked: Instant,
    table: Arc<Table>,
}

/// Those that may still be on.
type Tenures = Arc<Mutex<Vec<Weak<Tenure>>>>;

struct Beating {
    store: Arc<dyn Store>,
    id: InstanceId,
    lease: Duration,
    about: watch::Receiver<About>,
    report: watch::Receiver<Option<String>>,
    soon: Arc<Notify>,
    table: watch::Sender<News>,
    until: watch::Sender<Until>,
    tenures: Tenures,
    seen: Generation,
    /// When the last beat was answered, well or not.
    answered: Instant,
    /// Whether that went well.
    is_well: bool,
    throttle: LogThrottle,
}

impl Heart {
    /// Joins the instances of a store: when this returns, others can see this one, and its table is
    /// there.
    pub(crate) async fn start(
        store: &Arc<dyn Store>,
        id: InstanceId,
        about: About,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        let (about, report) = (watch::Sender::new(about), watch::Sender::new(None));
        let nothing = News { asked: Instant::now(), table: Arc::default() };
        let (table, until) = (watch::Sender::new(nothing), watch::Sender::new(None));
        let (soon, tenures) = (Arc::<Notify>::default(), Tenures::default());
        let mut beating = Beating {
            store: Arc::clone(store),
            id,
            lease,
            about: about.subscribe(),
            report: report.subscribe(),
            soon: Arc::clone(&soon),
            table,
            until,
            tenures: Arc::clone(&tenures),
            seen: 0,
            answered: Instant::now(),
            is_well: true,
            throttle: LogThrottle::new(WARN_INTERVAL),
        };
        beating.beat().await?;
        let (table, until) = (beating.table.subscribe(), beating.until.subscribe());
        let beating = tokio::spawn(beating.run());
        Ok(Self { id, about, report, soon, table, until, tenures, beating })
    }

    /// Which instance this is.
    pub(crate) fn id(&self) -> InstanceId {
        self.id
    }

    /// For another part of this process.
    pub(crate) fn membership(&self) -> Membership {
        Membership {
            id: self.id,
            about: self.about.clone(),
            soon: Arc::clone(&self.soon),
            table: self.table.clone(),
        }
    }

    /// Who is there and has what, as far as is known, and when that was asked for.
    pub(crate) fn table(&self) -> (Arc<Table>, Instant) {
        let News { asked, table } = self.table.borrow().clone();
        (table, asked)
    }

    /// Waits until there is another table than at the last time. Fails if this panicked.
    pub(crate) async fn changed(&mut self) -> Result<(), JoinError> {
        tokio::select! {
            Ok(()) = self.table.changed() => Ok(()),
            ended = &mut self.beating => ended,
        }
    }

    /// Stops it. Nothing more of it reaches the store.
    pub(crate) async fn stop(mut self) {
        self.beating.abort();
        // It was cancelled.
        let _ = (&mut self.beating).await;
    }

    /// Says that this instance takes no more.
    pub(crate) fn leave(&self) {
        self.about.send_modify(|about| about.leaving = true);
    }

    /// Says whether this instance reaches the broker.
    pub(crate) fn reaches_broker(&self, reach: Reach) {
        self.about.send_modify(|about| about.broker = reach);
    }

    /// Says how it is doing.
    pub(crate) fn report(&self, report: String) {
        self.report.send_if_modified(|before| before.replace(report.clone()) != Some(report));
    }

    /// Beats now: something has changed.
    pub(crate) fn beat_soon(&self) {
        self.soon.notify_one();
    }

    /// A tenure that begins. It ends as soon as this instance learns that what it was leased is
    /// another's, before it acts on the answer in any other way.
    pub(crate) fn tenure(&self) -> Arc<Tenure> {
        let tenure = Arc::new(Tenure::new(self.until.clone()));
        lock(&self.tenures).push(Arc::downgrade(&tenure));
        tenure
    }

    /// Notes what a tenure rests on. What is known by now may be newer.
    pub(crate) fn leased(&self, tenure: &Tenure, partition: &Partition, epoch: u64) {
        tenure.leased(partition.clone(), epoch);
        let News { asked, table } = self.table.borrow().clone();
        tenure.judge(self.id, &table, asked);
    }
}

fn lock(tenures: &Tenures) -> MutexGuard<'_, Vec<Weak<Tenure>>> {
    tenures.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

impl Beating {
    async fn run(mut self) {
        loop {
            // An answer that took longer than the lease lasts is worth nothing.
            let is_on = self.until.borrow().is_none_or(|until| Instant::now() < until);
            if is_on {
                tokio::select! {
                    () = sleep(EVERY) => {}
                    () = self.soon.notified() => {}
                    Ok(()) = self.about.changed() => {}
                }
            }
            if let Err(error) = self.beat().await {
                if self.throttle.allow() {
                    tracing::warn!(
                        %error,
                        "the store cannot be told that this instance runs; until it can, others may take \
                         its partitions"
                    );
                }
                sleep(EVERY).await;
            }
        }
    }

    async fn beat(&mut self) -> Result<(), StoreError> {
        let about = self.about.borrow_and_update().encode();
        let report = self.report.has_changed().unwrap_or(false);
        let report = report.then(|| self.report.borrow_and_update().clone()).flatten();
        let beat = Beat {
            id: self.id,
            about: &about,
            report: report.as_deref(),
            lease: self.lease,
            seen: self.seen,
        };
        // The lease runs from here, however long the answer is on its way.
        let (asked, until) = (Instant::now(), *self.until.borrow());
        // The last answer was in time, and this is not.
        if self.is_well && until.is_some_and(|until| self.answered < until && until <= asked) {
            tracing::warn!("this process stood still for longer than its lease lasts");
        }
        let is_on = until.is_some_and(|until| asked < until);
        let mut answer = self.store.beat(beat);
        let answer = tokio::select! {
            answer = &mut answer => answer,
            () = wait::until(until), if is_on => {
                tracing::warn!(
                    "the lease has run out, since the store does not answer: queues are given back \
                     until it does"
                );
                let answer = answer.await;
                tracing::info!("the store answers again");
                answer
            }
        };
        (self.answered, self.is_well) = (Instant::now(), answer.is_ok());
        if answer.is_err() {
            self.report.mark_changed();
        }
        let Beaten { lasts, table } = answer?;
        if let Some(table) = table {
            // It may have been forgotten with this instance.
            self.report.mark_changed();
            self.seen = table.generation;
            let table = Arc::new(table);
            lock(&self.tenures).retain(|tenure| {
                let tenure = tenure.upgrade().filter(|it| !it.is_over());
                tenure.is_some_and(|it| {
                    it.judge(self.id, &table, asked);
                    true
                })
            });
            self.table.send_replace(News { asked, table });
        }
        // Only now, so that nothing goes on that is another's.
        self.until.send_replace(lasts.map(|lasts| asked + lasts));
        Ok(())
    }
}

/// Gives back what processes had that ended on this machine without doing so: a start need not wait
/// for their leases to run out.
pub(crate) async fn bury(store: &dyn Store) -> Result<(), StoreError> {
    for (id, member) in store.table().await?.members {
        let about = About::decode(&member.about);
        if about.process.as_ref().is_some_and(ordain_store::Process::has_ended) {
            tracing::info!(instance = about.name, "taking over from a process that has ended");
            store.forget(id).await?;
        }
    }
    Ok(())
}
