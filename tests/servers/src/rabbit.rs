//! A real `rabbitmq-server`: a separate broker for one test, or a virtual host on a broker that several tests share.
//!
//! A start costs seven seconds of processor time, so most tests use a shared broker. A test that kills, pauses, blocks
//! or configures its broker starts a separate broker. The methods of a running broker take `&self`, so that a test can
//! kill the broker while other threads use it.

mod console;
mod options;
mod programs;
mod server;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};

pub use options::RabbitOptions;
pub use programs::rabbit_version;
use server::Server;

use crate::tls::Certificates;
use crate::wait::wait_until;

/// The virtual host that a broker has from the start.
const DEFAULT: &str = "/";
/// A user name: the broker's log names this user as the author of the changes by tests.
const USER: &str = "tests";
const POLICY: &str = "tests";

/// The brokers that the tests of this process share. The brokers end with the process.
static SHARED_BROKERS: Mutex<Vec<Arc<Server>>> = Mutex::new(Vec::new());

/// A virtual host of a broker. Dropping the value removes the virtual host from a shared broker, or kills a separate
/// broker.
#[derive(Debug)]
pub struct Rabbit {
    server: Arc<Server>,
    virtual_host: String,
    is_shared: bool,
}

impl Rabbit {
    /// Starts a separate broker, and waits until it accepts connections.
    pub fn start() -> Result<Self> {
        Self::with(&RabbitOptions::new())
    }

    /// Starts a separate broker with options.
    pub fn with(options: &RabbitOptions) -> Result<Self> {
        let server = Arc::new(Server::start(options)?);
        Ok(Self { server, virtual_host: DEFAULT.to_owned(), is_shared: false })
    }

    /// Starts another node of this separate broker, and waits until it accepts connections. The queues that clients
    /// declare from then on have a copy on the new node, up to a number of copies that the broker limits.
    pub fn join(&self) -> Result<Self> {
        let server = Arc::new(Server::join(self.private_server()?)?);
        Ok(Self { server, virtual_host: DEFAULT.to_owned(), is_shared: false })
    }

    /// Creates a virtual host on the broker that the tests of this process share.
    pub fn shared() -> Result<Self> {
        Self::shared_with(&RabbitOptions::new())
    }

    /// Creates a virtual host on a broker with these options. The tests of this process share the broker.
    pub fn shared_with(options: &RabbitOptions) -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let server = shared_server(options)?;
        let virtual_host = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let rabbit = Self { server, virtual_host, is_shared: true };
        rabbit.create_virtual_host()?;
        Ok(rabbit)
    }

    /// Returns the port of the broker.
    pub fn port(&self) -> u16 {
        self.server.port.number()
    }

    /// Returns the name of the virtual host.
    pub fn virtual_host(&self) -> &str {
        &self.virtual_host
    }

    /// Returns the URL of the virtual host, over TLS if the broker offers TLS.
    pub fn url(&self) -> String {
        match &self.server.tls {
            Some((port, _)) => self.address("amqps", "localhost", port.number()),
            None => self.url_at(self.port()),
        }
    }

    /// Returns the URL at another port, such as the port of a proxy in front of the broker, without TLS.
    pub fn url_at(&self, port: u16) -> String {
        self.address("amqp", "127.0.0.1", port)
    }

    /// Returns the URL of the management API ([`RabbitOptions::management`]).
    pub fn management_url(&self) -> Result<String> {
        let port = self
            .server
            .management
            .as_ref()
            .context("the broker runs without the management API")?;
        Ok(format!("http://127.0.0.1:{}", port.number()))
    }

    fn address(&self, scheme: &str, host: &str, port: u16) -> String {
        let path = match &*self.virtual_host {
            DEFAULT => String::new(),
            virtual_host => format!("/{virtual_host}"),
        };
        format!("{scheme}://guest:guest@{host}:{port}{path}")
    }

    /// Returns the certificates if the broker offers TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.server.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// Ends the broker immediately by SIGKILL. Does nothing if the broker is not running.
    pub fn kill(&self) -> Result<()> {
        self.private_server()?.process.kill()
    }

    /// Ends the broker cleanly by SIGTERM, and waits for its end.
    pub fn stop(&self) -> Result<()> {
        self.private_server()?.process.stop().map(drop)
    }

    /// Pauses the broker by SIGSTOP: the system still accepts connections, but the broker does not reply.
    pub fn pause(&self) -> Result<()> {
        self.private_server()?.process.set_paused(true)
    }

    /// Resumes the broker by SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.private_server()?.process.set_paused(false)
    }

    /// Starts the broker in the same folder on the same port, and waits until its queues have leaders. If the broker is
    /// running, kills it first.
    pub fn restart(&self) -> Result<()> {
        self.private_server()?.restart()
    }

    /// Begins or ends the maintenance of this node, as `rabbitmq-upgrade drain` and `rabbitmq-upgrade revive` do. During
    /// the maintenance, the node has no connections, and leads no queue that has copies on other nodes.
    pub fn set_in_maintenance(&self, is_in_maintenance: bool) -> Result<()> {
        let change = if is_in_maintenance { "drain" } else { "revive" };
        let done = self.private_server()?.evaluate(&format!("rabbit_maintenance:{change}()."))?;
        ensure!(done == "ok", "cannot {change} the node: {done}");
        Ok(())
    }

    /// Makes this node the leader of a quorum queue.
    pub fn lead(&self, queue: &str) -> Result<()> {
        let server = self.private_server()?;
        let transfer = format!(
            "{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r({}, queue, {})), \
             {{Name, _}} = amqqueue:get_pid(Queue), Member = {{Name, node()}}, \
             case ra:members(Member, 1000) of \
                 {{ok, _, Member}} -> led; \
                 {{ok, _, Leader}} -> ra:transfer_leadership(Leader, Member); \
                 Other -> Other end.",
            binary(&self.virtual_host),
            binary(queue)
        );
        wait_until("the leader of the queue", || Ok(server.evaluate(&transfer)? == "led"))
    }

    /// Moves the declarations into the database Khepri, which the broker has since version 4.0. Does nothing in earlier
    /// versions.
    pub fn enable_khepri(&self) -> Result<()> {
        if self.version()? < (4, 0) {
            return Ok(());
        }
        let enable = "{rabbit_feature_flags:enable(khepri_db), rabbit_khepri:is_enabled()}.";
        let done = self.private_server()?.evaluate(enable)?;
        ensure!(done == "{ok,true}", "cannot enable Khepri: {done}");
        Ok(())
    }

    /// Sets a parameter of the Erlang application `rabbit` to a value in Erlang's notation.
    pub fn set(&self, parameter: &str, value: &str) -> Result<()> {
        // RabbitMQ 4 reads some parameters from `persistent_term`, so set the parameter in both places.
        let set = format!(
            "application:set_env(rabbit, {parameter}, {value}), persistent_term:put({parameter}, {value})."
        );
        self.private_server()?.evaluate(&set).map(drop)
    }

    /// Sets the fraction of the machine's memory that the broker may use. At 0, the broker blocks all connections that
    /// publish.
    pub fn limit_memory(&self, part: f64) -> Result<()> {
        let set = format!("vm_memory_monitor:set_vm_memory_high_watermark({part:.6}).");
        self.private_server()?.evaluate(&set).map(drop)
    }

    /// Sets the free space of the disk, in bytes, that the broker needs. With less free space, the broker blocks all
    /// connections that publish.
    pub fn need_free_disk(&self, bytes: u64) -> Result<()> {
        let set = format!("rabbit_disk_monitor:set_disk_free_limit({bytes}).");
        self.private_server()?.evaluate(&set).map(drop)
    }

    /// Closes all connections to the virtual host.
    pub fn close_connections(&self) -> Result<()> {
        let close = format!(
            "[catch rabbit_networking:close_connection(Pid, \"test\") || \
                 Pid <- rabbit_networking:connections(), \
                 (catch rabbit_networking:connection_info(Pid, [vhost])) =:= [{{vhost, {}}}]].",
            binary(&self.virtual_host)
        );
        self.server.evaluate(&close).map(drop)
    }

    /// Closes the connections to the virtual host that clients have opened with this name.
    pub fn close_connection(&self, name: &str) -> Result<()> {
        let close = format!(
            "{} [catch rabbit_networking:close_connection(Pid, \"test\") || \
                 Pid <- rabbit_networking:connections(), NameOf(Pid) =:= {}].",
            self.name_of_connection(),
            binary(name)
        );
        self.server.evaluate(&close).map(drop)
    }

    /// Returns the names of the open connections to the virtual host. The name of a connection is empty if its client
    /// has given it no name.
    pub fn open_connections(&self) -> Result<Vec<String>> {
        let listed = self.server.evaluate(&format!(
            "{} iolist_to_binary([[Name, \"\\n\"] || Pid <- rabbit_networking:connections(), \
                 Name <- [NameOf(Pid)], Name =/= none]).",
            self.name_of_connection()
        ))?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// The function returns the name of a connection, or `none` if the connection belongs to another virtual host.
    fn name_of_connection(&self) -> String {
        format!(
            "NameOf = fun(Pid) -> \
                 case catch rabbit_networking:connection_info(Pid, [vhost, client_properties]) of \
                     [{{vhost, Host}}, {{client_properties, Properties}}] when Host =:= {} -> \
                         case rabbit_misc:table_lookup(Properties, {}) of \
                             {{longstr, Name}} -> Name; \
                             _ -> <<>> end; \
                     _ -> none end end,",
            binary(&self.virtual_host),
            binary("connection_name")
        )
    }

    /// Adds a user with a password. The user may read from and write to every resource of the virtual host, and may
    /// declare and delete the resources whose names match the regular expression `declares`.
    pub fn add_user(&self, name: &str, password: &str, declares: &str) -> Result<()> {
        let added = self.server.evaluate(&format!(
            "ok = rabbit_auth_backend_internal:add_user({name}, {password}, {user}), All = {all}, \
             rabbit_auth_backend_internal:set_permissions({name}, {host}, {declares}, All, All, {user}).",
            name = binary(name),
            password = binary(password),
            host = binary(&self.virtual_host),
            declares = binary(declares),
            all = binary(".*"),
            user = binary(USER),
        ))?;
        ensure!(added == "ok", "cannot add the user {name}: {added}");
        Ok(())
    }

    /// Changes the rights of a user: from now on, the user may declare and delete the resources whose names match the
    /// regular expression `declares`. Open connections remain.
    pub fn limit_declarations(&self, name: &str, declares: &str) -> Result<()> {
        self.set_rights(name, [declares, ".*", ".*"])
    }

    /// Sets the rights of a user by three regular expressions for the names of resources. The user may declare and
    /// delete the resources that match the first expression, write to the resources that match the second expression,
    /// and read from the resources that match the third expression. Open connections remain.
    pub fn set_rights(&self, name: &str, [declares, writes, reads]: [&str; 3]) -> Result<()> {
        let set = self.server.evaluate(&format!(
            "rabbit_auth_backend_internal:set_permissions({name}, {host}, {declares}, {writes}, {reads}, {user}).",
            name = binary(name),
            host = binary(&self.virtual_host),
            declares = binary(declares),
            writes = binary(writes),
            reads = binary(reads),
            user = binary(USER),
        ))?;
        ensure!(set == "ok", "cannot set the rights of {name}: {set}");
        Ok(())
    }

    /// Adds a user with the password `guest`. The user may declare and delete the queues and exchanges that a stream
    /// with one partition and the queue `cases` needs, but no other resource. The user can therefore not declare the
    /// stream's markers.
    pub fn add_narrow_user(&self, name: &str) -> Result<()> {
        // Ordain declares an exchange `{queue}.version.*` whose type exists only in RabbitMQ 4.0 and later, to
        // recognise these versions. In these versions, the user therefore needs the right to declare this exchange.
        let version = if self.version()? >= (4, 0) { r"|\.version\..*" } else { "" };
        self.add_user(name, "guest", &format!(r"^cases(\.dropped{version})?$"))
    }

    /// Changes the password of a user. Open connections remain.
    pub fn change_password(&self, name: &str, password: &str) -> Result<()> {
        let changed = self.server.evaluate(&format!(
            "ok = rabbit_auth_backend_internal:change_password({}, {}, {}), ok.",
            binary(name),
            binary(password),
            binary(USER),
        ))?;
        ensure!(changed == "ok", "cannot change the password of {name}: {changed}");
        Ok(())
    }

    /// Gives a user all rights to the virtual host, or takes all rights away. Open connections remain.
    pub fn set_access(&self, user: &str, is_allowed: bool) -> Result<()> {
        let name = binary(user);
        let host = binary(&self.virtual_host);
        let acting = binary(USER);
        let all = binary(".*");
        let set = if is_allowed {
            format!(
                "rabbit_auth_backend_internal:set_permissions({name}, {host}, {all}, {all}, {all}, {acting})."
            )
        } else {
            format!("rabbit_auth_backend_internal:clear_permissions({name}, {host}, {acting}).")
        };
        let done = self.server.evaluate(&set)?;
        ensure!(done == "ok", "cannot change the rights of {user}: {done}");
        Ok(())
    }

    /// Sets a policy for the queues whose names match the regular expression `queues`. `definition` is in JSON.
    pub fn set_policy(&self, queues: &str, definition: &str) -> Result<()> {
        self.set_named_policy(POLICY, queues, definition)
    }

    /// As [`Self::set_policy`], but sets a policy with another name. [`Self::clear_policy`] does not remove this
    /// policy.
    pub fn set_named_policy(&self, name: &str, queues: &str, definition: &str) -> Result<()> {
        self.set_policy_by("parse_set", name, queues, definition)
    }

    /// As [`Self::set_policy`], but sets an operator policy.
    pub fn set_operator_policy(&self, queues: &str, definition: &str) -> Result<()> {
        self.set_policy_by("parse_set_op", POLICY, queues, definition)
    }

    fn set_policy_by(
        &self,
        function: &str,
        name: &str,
        queues: &str,
        definition: &str,
    ) -> Result<()> {
        let done = self.server.evaluate(&format!(
            "rabbit_policy:{function}({host}, {name}, {queues}, {rules}, 0, {kind}, {user}).",
            host = binary(&self.virtual_host),
            name = binary(name),
            queues = binary(queues),
            rules = binary(definition),
            kind = binary("queues"),
            user = binary(USER),
        ))?;
        ensure!(done == "ok", "cannot set the policy {definition}: {done}");
        Ok(())
    }

    /// Removes the policy that [`Self::set_policy`] has set.
    pub fn clear_policy(&self) -> Result<()> {
        let done = self.server.evaluate(&format!(
            "rabbit_policy:delete({host}, {name}, {user}).",
            host = binary(&self.virtual_host),
            name = binary(POLICY),
            user = binary(USER),
        ))?;
        ensure!(done == "ok", "cannot remove the policy: {done}");
        Ok(())
    }

    /// Returns the major and the minor version of the broker.
    pub fn version(&self) -> Result<(u32, u32)> {
        let version = self.server.evaluate("list_to_binary(rabbit_misc:version()).")?;
        let mut parts = version.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
            _ => bail!("the broker reports the invalid version {version:?}"),
        }
    }

    /// Returns whether the broker can hash keys into queues without a plugin.
    pub fn has_hash_exchange(&self) -> Result<bool> {
        Ok(self.version()? >= (4, 3))
    }

    /// Limits the number of connections of a user. `None` removes the limit.
    pub fn limit_connections(&self, user: &str, limit: Option<u32>) -> Result<()> {
        let name = binary(user);
        let acting = binary(USER);
        let set = match limit {
            Some(limit) => format!(
                "ok = rabbit_auth_backend_internal:set_user_limits({name}, \
                 <<\"{{\\\"max-connections\\\":{limit}}}\">>, {acting}), ok."
            ),
            None => format!(
                "ok = rabbit_auth_backend_internal:clear_user_limits({name}, <<\"all\">>, {acting}), ok."
            ),
        };
        let done = self.server.evaluate(&set)?;
        ensure!(done == "ok", "cannot change the connection limit of {user}: {done}");
        Ok(())
    }

    /// Makes the broker forget the exchange type `x-modulus-hash`, as if its plugin were missing after an upgrade. Or
    /// restores the type that the broker has forgotten.
    pub fn support_modulus_hash(&self, is_supported: bool) -> Result<()> {
        let name = binary("x-modulus-hash");
        let place = "ordain_exchange_type";
        let change = if is_supported {
            format!("ok = rabbit_registry:register(exchange, {name}, persistent_term:get({place}))")
        } else {
            format!(
                "{{ok, Module}} = rabbit_registry:lookup_module(exchange, binary_to_atom({name})), \
                 ok = persistent_term:put({place}, Module), \
                 ok = rabbit_registry:unregister(exchange, {name})"
            )
        };
        // RabbitMQ 4 keeps the function that routes the messages of a type in `persistent_term`.
        let change = format!("{change}, _ = persistent_term:erase(binary_to_atom({name})), ok.");
        let done = self.private_server()?.evaluate(&change)?;
        ensure!(done == "ok", "cannot change the types of exchanges: {done}");
        Ok(())
    }

    /// Limits the number of queues of the virtual host. `None` removes the limit.
    pub fn limit_queues(&self, limit: Option<u32>) -> Result<()> {
        let host = binary(&self.virtual_host);
        let acting = binary(USER);
        let done = self.server.evaluate(&match limit {
            Some(limit) => format!(
                "rabbit_vhost_limit:parse_set({host}, <<\"{{\\\"max-queues\\\":{limit}}}\">>, {acting})."
            ),
            None => format!("rabbit_vhost_limit:clear({host}, {acting})."),
        })?;
        ensure!(done == "ok", "cannot change the limit of queues: {done}");
        Ok(())
    }

    /// Deletes the virtual host with all its queues, and creates an empty virtual host with the same name. The users
    /// that a test added lose their rights.
    pub fn recreate_virtual_host(&self) -> Result<()> {
        self.delete_virtual_host()?;
        self.create_virtual_host()
    }

    /// Deletes the virtual host with all its queues. Waits until the broker has closed all connections to it, because
    /// the broker would also close the first connections to a new virtual host with the same name.
    pub fn delete_virtual_host(&self) -> Result<()> {
        let host = binary(&self.virtual_host);
        let deleted =
            self.server.evaluate(&format!("rabbit_vhost:delete({host}, {}).", binary(USER)))?;
        ensure!(deleted == "ok", "cannot delete the virtual host {}: {deleted}", self.virtual_host);
        wait_until("the end of the connections to the virtual host", || {
            Ok(self.open_connections()?.is_empty())
        })
    }

    /// Creates an empty virtual host after [`Self::delete_virtual_host`]. The user `guest` has all rights to it.
    pub fn create_virtual_host(&self) -> Result<()> {
        let created = self.server.evaluate(&format!(
            "ok = rabbit_vhost:add({host}, {user}), All = {all}, \
             rabbit_auth_backend_internal:set_permissions({guest}, {host}, All, All, All, {user}).",
            host = binary(&self.virtual_host),
            guest = binary("guest"),
            all = binary(".*"),
            user = binary(USER),
        ))?;
        ensure!(created == "ok", "cannot create the virtual host {}: {created}", self.virtual_host);
        Ok(())
    }

    /// Makes the broker write all declarations to its disk, and waits until they are written. Otherwise, the broker
    /// writes a declaration up to two seconds late. If a test kills the broker before the declaration of a queue is
    /// written, the queue loses even its confirmed messages.
    pub fn sync(&self) -> Result<()> {
        // `catch` ignores errors, because another test's virtual host may close a table at this moment. The close then
        // writes the table. Since RabbitMQ 4.3, another database (Khepri), which syncs each write, replaces Mnesia.
        let sync = "case mnesia:system_info(is_running) of yes -> ok = mnesia:sync_log(); no -> ok end, \
                    [catch dets:sync(Table) || Table <- dets:all()], ok.";
        let done = self.server.evaluate(sync)?;
        ensure!(done == "ok", "the broker cannot write its tables to the disk: {done}");
        Ok(())
    }

    /// Returns two numbers for each queue: the present number of its ready messages, and the present number of its
    /// unacknowledged messages. For a queue that does not reply, both numbers are `u64::MAX`.
    pub fn queues(&self) -> Result<BTreeMap<String, (u64, u64)>> {
        // `rabbitmqctl` lists counts of quorum queues that are up to five seconds old, so this function queries the
        // queues themselves. A query has another form since RabbitMQ 4.3.
        let listed = self.server.evaluate(&format!(
            "Count = fun(Queue, Query) -> \
                 Leader = amqqueue:get_pid(Queue), \
                 {{ok, {{_, Count}}, _}} = try ra:leader_query(Leader, fun rabbit_fifo:Query/1) \
                     catch error:function_clause -> \
                         ra:leader_query(Leader, {{rabbit_fifo, Query, []}}) end, \
                 Count end, \
             Counts = fun(Queue) -> case amqqueue:is_quorum(Queue) of \
                 true -> [Count(Queue, query_messages_ready), \
                          Count(Queue, query_messages_checked_out)]; \
                 false -> [Count || {{_, Count}} <- rabbit_amqqueue:info(Queue, \
                              [messages_ready, messages_unacknowledged])] end end, \
             unicode:characters_to_binary([begin \
                 Words = try Counts(Queue) catch _:_ -> [unknown, unknown] end, \
                 io_lib:format(\"~ts\\t~p\\t~p\\n\", [element(4, amqqueue:get_name(Queue)) | Words]) \
                 end || Queue <- rabbit_amqqueue:list({})]).",
            binary(&self.virtual_host)
        ))?;
        let row = |line: &str| {
            let mut parts = line.split('\t');
            let name = parts.next()?.to_owned();
            let mut count = || Some(parts.next()?.parse().unwrap_or(u64::MAX));
            Some((name, (count()?, count()?)))
        };
        Ok(listed.lines().filter_map(row).collect())
    }

    /// Returns the names of the queues and exchanges that are bound to an exchange. The broker routes messages by each
    /// of these bindings: it writes the rows of a binding to several tables one after the other, and this method omits
    /// a binding until all rows are written.
    pub fn bound(&self, exchange: &str) -> Result<Vec<String>> {
        // A transaction keeps its lock on the table of the bindings until it has written this table. RabbitMQ 4.0 writes
        // the routes of a topic exchange after this transaction. Since RabbitMQ 4.3, another database (Khepri) replaces
        // Mnesia.
        let listed = self.server.evaluate(&format!(
            "Source = rabbit_misc:r({}, exchange, {}), \
             Targets = [element(4, Binding) || Binding <- rabbit_binding:list_for_source(Source)], \
             IsMnesia = mnesia:system_info(is_running) =:= yes, \
             IsMnesia andalso mnesia:transaction( \
                 fun() -> mnesia:read_lock_table(rabbit_route) end), \
             Complete = case IsMnesia andalso rabbit_exchange:lookup(Source) of \
                 {{ok, Exchange}} when element(3, Exchange) =:= topic -> \
                     Routes = [element(4, element(2, Route)) || \
                         Route <- ets:tab2list(rabbit_topic_trie_binding), \
                         element(2, element(2, Route)) =:= Source], \
                     [Target || Target <- Targets, lists:member(Target, Routes)]; \
                 _ -> Targets end, \
             iolist_to_binary(lists:join(\"\\n\", [element(4, Target) || Target <- Complete])).",
            binary(&self.virtual_host),
            binary(exchange)
        ))?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Returns the names of the exchanges from which bindings lead to an exchange.
    pub fn bound_to_exchange(&self, exchange: &str) -> Result<Vec<String>> {
        let listed = self.server.evaluate(&format!(
            "Target = rabbit_misc:r({}, exchange, {}), \
             Names = [element(4, element(2, Binding)) || \
                 Binding <- rabbit_binding:list_for_destination(Target)], \
             iolist_to_binary(lists:join(\"\\n\", Names)).",
            binary(&self.virtual_host),
            binary(exchange)
        ))?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Suspends or resumes the process of a quorum queue. A suspended queue neither accepts nor rejects messages.
    pub fn suspend(&self, queue: &str, suspended: bool) -> Result<()> {
        let done = self.server.evaluate(&format!(
            "{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r({}, queue, {})), \
             {{Name, _}} = amqqueue:get_pid(Queue), sys:{}(whereis(Name)).",
            binary(&self.virtual_host),
            binary(queue),
            if suspended { "suspend" } else { "resume" }
        ))?;
        ensure!(done == "ok", "cannot suspend or resume the process of queue {queue}: {done}");
        Ok(())
    }

    /// Stops the process of a classic queue, as the end of the queue's node does. The broker then refuses every use of
    /// the queue, but still allows a client to delete the queue.
    pub fn stop_classic_queue(&self, queue: &str) -> Result<()> {
        let name = format!(
            "{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r({}, queue, {}))",
            binary(&self.virtual_host),
            binary(queue)
        );
        let done = self
            .server
            .evaluate(&format!("{name}, exit(amqqueue:get_pid(Queue), shutdown), ok."))?;
        ensure!(done == "ok", "cannot stop the process of queue {queue}: {done}");
        wait_until("the end of the queue's process", || {
            Ok(self.server.evaluate(&format!("{name}, amqqueue:get_state(Queue)."))? == "stopped")
        })
    }

    /// Returns the end of the broker's log.
    pub fn log_tail(&self) -> String {
        self.server.log_tail()
    }

    /// Returns how many connections to the virtual host clients have opened, according to the broker's log. Counts only
    /// connections whose names contain `name`.
    pub fn opened_connections(&self, name: &str) -> usize {
        self.opened_connections_since("", name)
    }

    /// Returns the number of connections to the virtual host whose names contain `name`, according to the broker's log.
    /// Counts only connections after the last connection whose name contains `start`.
    pub fn opened_connections_since(&self, start: &str, name: &str) -> usize {
        let host = format!("vhost '{}'", self.virtual_host);
        let log = self.server.log();
        let opened: Vec<&str> =
            log.lines().filter(|line| line.contains("granted") && line.contains(&host)).collect();
        let is_start = |line: &&str| !start.is_empty() && line.contains(start);
        let begin = opened.iter().rposition(is_start).unwrap_or_default();
        opened[begin..].iter().filter(|line| line.contains(name)).count()
    }

    /// Returns the id of the broker's process, or `None` after [`Self::kill`] or [`Self::stop`].
    pub fn id(&self) -> Option<u32> {
        self.server.process.id()
    }

    /// Returns the broker, or an error if it is a shared broker.
    fn private_server(&self) -> Result<&Server> {
        ensure!(!self.is_shared, "other tests share this broker: use `Rabbit::start`");
        Ok(&self.server)
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        if self.is_shared {
            // An error here must not hide the error of a failed test.
            let host = binary(&self.virtual_host);
            let delete = format!("rabbit_vhost:delete({host}, {}).", binary(USER));
            let _ = self.server.evaluate(&delete);
        }
    }
}

/// Returns the shared broker with these options. The first call with these options starts the broker.
fn shared_server(options: &RabbitOptions) -> Result<Arc<Server>> {
    let mut servers = SHARED_BROKERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = servers.iter().find(|server| server.options == *options) {
        return Ok(Arc::clone(server));
    }
    let server = Arc::new(Server::start(options).context("cannot start the shared broker")?);
    servers.push(Arc::clone(&server));
    Ok(server)
}

fn binary(text: &str) -> String {
    format!("<<{text:?}/utf8>>")
}
