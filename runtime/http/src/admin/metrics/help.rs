//! The help texts of the metrics. Each constant has the name of its metric.

pub(super) const BUILD_INFO: &str =
    "Always 1; the label `version` contains the version of the program";
pub(super) const LOG_LINES_DROPPED: &str = "\
    Lines that this process did not write to standard error, because standard error accepted no data in time or \
    returned an error";
pub(super) const STORE_WRITABLE: &str =
    "1 while the store accepts writes and completes all requests, 0 otherwise";
pub(super) const BROKER_CONNECTED: &str =
    "1 while the broker responds to this process, 0 otherwise";
pub(super) const SINK_ACCEPTED: &str = "\
    For each sink of kind `amqp`: 0 while the broker refuses the exchange of the sink, for example because the \
    exchange is missing; 1 otherwise. For each sink of kind `file`: 0 while its output cannot be written; 1 otherwise";
pub(super) const STREAM_CONSUMING: &str = "\
    For each partition that this process owns: 1 while the partition's source can deliver events, even if it has \
    none to deliver; 0 otherwise. Also 0 while a stopped key with `spill_limit` events in the store blocks the \
    partition";
pub(super) const EVENTS: &str = "\
    Events that ended durably: with effect, as a duplicate, as a dead letter, or without a call of the handler \
    because of their type";
pub(super) const UNVERIFIED_DUPLICATES: &str = "\
    Store-numbered events that counted as duplicates without a comparison, because Ordain no longer knew the event \
    that it had settled with the same sequence";
pub(super) const DEAD_LETTERS: &str = "Dead letters written";
pub(super) const PUBLISHED_MESSAGES: &str =
    "Messages, and forwarded dead letters, that this process has published";
pub(super) const UNROUTABLE_MESSAGES: &str = "\
    For each sink of kind `amqp`: messages that the sink has dropped, because no queue accepted them";
pub(super) const INGRESS_REQUESTS: &str = "Requests to the ingress, by response status";
pub(super) const EVENTS_LOST: &str = "\
    Events over HTTP that this process accepted, but that the store lost before the stream read them, because the \
    store went back in time";
pub(super) const MESSAGES_LOST: &str = "\
    Messages that a sink file contained at the start although the store lacked them, because the store had gone back \
    in time";
pub(super) const TOPOLOGY_CHANGES: &str = "\
    How often this process has found a fault of the stream's topology in the broker while the stream ran. This \
    metric counts three kinds of faults. First, an exchange, queue or binding of the stream was missing or replaced. \
    Second, another queue, exchange or program took events from the stream. Third, the broker refused to declare or \
    bind an exchange or queue, for example because of another form or a missing permission";
pub(super) const KEYS_MOVED: &str =
    "Keys that a partition of this process took over from another partition";
pub(super) const HANDLER_FAILURES: &str = "\
    Failed attempts of handlers to execute an event, by the kind of the failure: retry, timeout, trap, limit or error";
pub(super) const COMMITS_REPEATED: &str =
    "Commits that the store lost, and that Ordain then repeated from memory";
pub(super) const ROLLBACKS: &str =
    "How often this process has found that a shard went back in time and lost data of the stream";
pub(super) const GAP_ROUNDS: &str = "Requests for missing events, by replay source";
pub(super) const RECOVERY_SECONDS: &str = "\
    Seconds from the detection of a gap (usually at the arrival of a later event) to the arrival of the first \
    missing event";
pub(super) const HANDLER_SECONDS: &str = "\
    Seconds that a handler took for an event: the average over the events of a turn (events of one key, executed \
    back to back)";
pub(super) const HANDLER_FILES_REFUSED: &str =
    "Unusable handler files, as listed by the command `plugins list`";
pub(super) const VERSION_GENERATION: &str = "\
    Number of the rollout (choice of a handler version) under which the stream's events are executed";
pub(super) const COMMIT_SECONDS: &str = "Seconds until the store answered a commit";
pub(super) const COMMIT_BATCH_EVENTS: &str = "Number of events that a commit settled";
pub(super) const PUBLISH_TO_COMMIT_SECONDS: &str =
    "Seconds from the producer's timestamp of an event to the commit of the event";
pub(super) const LANES: &str = "Keys in memory";
pub(super) const READY_KEYS: &str = "Keys in memory with an event that can run";
pub(super) const BLOCKED_KEYS: &str = "\
    Keys in memory that cannot continue, by cause: gap (an event is missing, or another partition has the key), retry \
    (an attempt failed), parked, corrupt (stored data of the key is unreadable), or version (the handler version is \
    missing)";
pub(super) const FULL_KEYS: &str = "\
    1 while the partition accepts no events because the store holds `spill_limit` events of a stopped key, 0 \
    otherwise";
pub(super) const OUTBOX_PENDING: &str =
    "Messages, and dead letters to be forwarded, that are committed but not yet published";
pub(super) const PARTITION_LAG_EVENTS: &str =
    "Events that wait for delivery in the broker or in the store";
pub(super) const DROPPED_MESSAGES: &str = "\
    Messages in the queue `{queue}.dropped`: the broker has dropped them from the queues of the stream";
pub(super) const INBOX_EVENTS: &str =
    "Events received over HTTP and not yet published to the broker";
pub(super) const PARKED_KEYS: &str = "Parked keys: the last count in the store, or the number in the memory of this process if that number is higher";
pub(super) const WANTED_INSTANCES: &str = "\
    Number of instances that the lag of a stream requires; while the lag is unknown, at least the number of running \
    instances, up to the number of partitions. GET /v1/scale/STREAM returns the same number";
