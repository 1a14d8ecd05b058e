// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The contract of a provider: the traits that every transport implements. Methods with a default may be left out.
//!
//! Control calls go through these traits. Calls that post operations or read completions go through the tables of operations
//! in `ops.rs`, and an endpoint or a completion source may bring a table of its own. The default tables call `rma`, `send`
//! and `recv` below, so a provider without a table is complete.
//!
//! Threads: any thread may call any method at any time, unless the domain was opened with [`Threading::Promised`]. A method
//! waits only if its comment says so.

use super::atomic::{Atomic, AtomicOp};
use super::bind::{Binding, Coop, Effort, Options, RailList};
use super::flags;
use super::idle_set::IdleSet;
use super::info::{Ask, CM_DATA_MAX, Info, Nic};
use super::lane::Lane;
use super::list::{List, Native, Pair, Run};
use super::op::{Common, Dir, Iov, RmaIov};
use super::ops::{Dispatch, OpFlags};
use super::queue::{Counter, Queue};
use super::report::{PathReport, RailReport, Stats};
use super::request::Request;
use super::source::CompletionSource;
use crate::error::{Error, Result, errno};
use crate::mr::{Access, Attr, Facts, RegionId};
use crate::sync::gate::Fences;
use crate::sync::serial::Threading;
use crate::sys::epoll::Poller;
use std::net::SocketAddr;
use std::sync::Arc;

/// The abilities of a provider on this host, or the reason why it cannot be used.
pub struct Offer {
    pub name: &'static str,
    pub usable: Result<()>,
    /// One line per fact: its name, and how it works here or why it does not.
    pub facts: Vec<(String, std::result::Result<String, String>)>,
}

/// The peers that a provider's endpoints can reach when they are lanes of connectionless endpoints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reach {
    /// Every host with an IP address; listeners have port numbers.
    Ports,
    /// Hosts on the network of the provider's device, which has addresses of its own.
    Devices,
    /// Processes of this host; listeners have names.
    Host,
}

/// A transport: one way to reach peers. Each has a line in `prov::PROVIDERS`.
pub trait Provider: Sync {
    fn name(&self) -> &'static str;

    fn offer(&self) -> Offer;

    /// The infos that `gdrfab_getinfo()` may return, best first. A candidate that cannot serve carries its `reason`.
    fn candidates(&self, ask: &Ask<'_>) -> Vec<Info>;

    /// Fails unless `address` has this provider's format.
    fn check_address(&self, address: &str) -> Result<()>;

    /// The NIC behind a candidate; `near` is the PCI address of an accelerator.
    fn nic(&self, _info: &Info, _near: Option<&str>) -> Result<Nic> {
        Err(Error::new(errno::ENODATA, format!("info: provider {} has no NIC", self.name())))
    }

    fn open_domain(&self, info: &Info, threading: Threading) -> Result<Arc<dyn Domain>>;

    /// The peers that this provider's endpoints reach as lanes of connectionless endpoints.
    fn reach(&self) -> Reach {
        Reach::Ports
    }

    /// True if `info->auth_key` keeps out peers that do not know the key. If not, a connectionless endpoint over this
    /// provider refuses to take a key.
    fn enforces_auth_key(&self) -> bool {
        true
    }

    /// The address at which the lanes of a connectionless endpoint listen and are called, where peers know that endpoint by
    /// the socket address `at`.
    fn lane_address(&self, _info: &Info, at: SocketAddr) -> String {
        format!("{}://{at}", self.name())
    }

    /// Turns a candidate into the info of a lane, or sets the reason why it cannot be a lane.
    fn as_lane(&self, info: Info) -> Info {
        info
    }

    /// As `candidates`, for endpoints that are lanes of connectionless ones.
    fn lanes(&self, near: Option<&str>) -> Vec<Info> {
        self.candidates(&Ask { node: None, service: None, source: false, domain: None, near })
    }

    /// The info with which the domain and the endpoints of the lanes are opened, for an endpoint of `info`. Provider-chosen
    /// keys are off: the layer above draws the keys, so that a region has the same key on all lanes.
    fn lane_info(&self, info: &Info) -> Result<Info> {
        let (mr_mode, prov_name) = (info.mr_mode & !flags::MR_MODE_PROV_KEY, Some(self.name().into()));
        Ok(Info { mr_mode, prov_name, src_addr: None, dest_addr: None, comp_order: 0, ..info.clone() })
    }

    /// Takes the address in `info->src_addr`, or chooses one. Listening begins later, by `Listener::listen`.
    fn open_listener(&self, info: &Info) -> Result<Box<dyn Listener>>;
}

/// A domain: registers and allocates memory, and opens endpoints.
pub trait Domain: Send + Sync {
    /// The numbers of open regions and of allocations. Either keeps the domain open.
    fn in_use(&self) -> (usize, usize);

    fn open_endpoint(self: Arc<Self>, info: &Info, context: usize) -> Result<Box<dyn Endpoint>>;

    /// Opens a source that feeds a completion queue of `size` entries. `None`: the endpoints feed the queue themselves, in
    /// their turns of progress.
    fn open_source(self: Arc<Self>, _size: usize, _queue: &Arc<Queue>) -> Result<Option<Arc<dyn CompletionSource>>> {
        Ok(None)
    }

    /// True if arrivals show in a cache line that is polled, without a system call. A read that finds nothing then pauses the
    /// CPU.
    fn polls_memory(&self) -> bool {
        false
    }

    /// The number of further TCP connections for long transfers that an endpoint has by default, and the largest number that
    /// may be set. `None`: the provider has no such connections.
    fn tcp_streams(&self) -> Option<(u32, u32)> {
        None
    }

    /// Parses a list of interfaces and addresses into rails. `None` gives the rails of endpoints for which no list was set.
    fn rails(&self, _words: Option<&str>) -> Result<RailList> {
        Err(Error::fixed(errno::ENOPROTOOPT, "optname: only tcp has rails for each endpoint; for verbs set GDRFAB_VERBS_RAILS"))
    }

    /// Fails unless a card carries out atomics on regions that are registered for them. Without such a card no such region is
    /// registered.
    fn check_card_atomics(&self) -> Result<()> {
        Err(Error::fixed(
            errno::EOPNOTSUPP,
            "access: GDRFAB_ATOMIC: atomics of this domain are executed by CPUs and need no such right; those of RDMA devices need a \
             domain over verbs",
        ))
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId>;

    /// As `register`, for one range of host memory with no required path and with a key and an address of the provider's
    /// choice; the caller has checked the arguments. The region's id is written in place, because copying an id just written
    /// would wait for each of its stores. False: nothing was done.
    fn register_fast(&self, _iov: Iov, _access: Access, _id: &mut RegionId) -> bool {
        false
    }

    /// Lifts the limit on open regions: the library itself will register regions for messages, beside the `mr_cnt` that the
    /// program may have. The layer above counts both.
    fn make_room(&self) {}

    /// Registers one range of host memory for reading by peers, until `close_exposed`. The provider chooses the key, whatever
    /// `mr_mode` says. `None`: nothing was done, and the caller is to use `register`.
    fn expose(&self, _iov: Iov) -> Option<RegionId> {
        None
    }

    /// As `try_close_region`, for memory whose key was given to at most one peer, after that peer has said that it is
    /// finished with the memory.
    fn close_exposed(&self, id: RegionId) -> Result<()> {
        self.try_close_region(id)
    }

    /// The address and the key by which the peer at the other end of a lane reads a message that lies in a region.
    /// `None`: by the region's own base and key. An error: the peer cannot read the message there.
    fn message_name(&self, _id: RegionId, _iov: Iov) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }

    /// True if a region may be closed while a peer reads it, so that the read fails and the connection stays.
    fn can_revoke(&self) -> bool {
        true
    }

    /// Closes a region. After `Ok` no peer reaches the memory. `EBUSY`: a peer still may, and the caller can call again. This
    /// call waits, for a bounded time.
    fn close_region(&self, id: RegionId) -> Result<()>;

    /// As `close_region`, without waiting: for calls that serve several peers, so that one stopped peer does not hold up the
    /// others.
    fn try_close_region(&self, id: RegionId) -> Result<()> {
        self.close_region(id)
    }

    fn facts(&self, id: RegionId) -> Result<Facts>;

    fn explain_region(&self, id: RegionId) -> Result<String>;

    /// Binds a counter of peers' writes into the region, where the provider sees such writes.
    fn bind_counter(&self, _id: RegionId, _counter: Arc<Counter>) -> Result<()> {
        Err(Error::fixed(errno::EOPNOTSUPP, "mr: this provider does not see a peer's plain writes; use writes with data"))
    }

    /// The number of open regions that overlap `[addr, addr+len)`.
    fn regions_covering(&self, addr: u64, len: u64) -> usize;

    /// Allocates memory that peers reach by this provider's fastest path.
    fn allocate(&self, len: usize) -> Result<usize>;

    fn free(&self, addr: usize) -> Result<()>;
}

/// A connected endpoint (`GDRFAB_EP_MSG`).
pub trait Endpoint: Send + Sync {
    /// Sets the caller's handle, by which events name this endpoint.
    fn set_object(&self, object: usize);

    /// The most bytes of private data that connect and accept take.
    fn cm_data_size(&self) -> usize {
        CM_DATA_MAX
    }

    /// Binds a queue, a counter or the like. Only counters may be bound after `enable`.
    fn bind(&self, what: Binding) -> Result<()>;

    /// Enables the endpoint. Operations posted without flags have `op_flags`.
    fn enable(&self, op_flags: OpFlags) -> Result<()>;

    /// The table of operations of an enabled endpoint. `None`: the general table, whose entries call `rma`, `send` and
    /// `recv`.
    fn dispatch(&self) -> Option<Dispatch> {
        None
    }

    fn connect(&self, address: &str, data: &[u8]) -> Result<()>;

    /// Connects by addresses that both sides have exchanged; both call this.
    fn connect_addr(&self, _address: &str) -> Result<()> {
        Err(Error::fixed(errno::EOPNOTSUPP, "ep: this provider connects only to passive endpoints; call gdrfab_connect()"))
    }

    /// Accepts a connection request. If this fails, the request is consumed and its peer is lost.
    fn accept(&self, request: Box<dyn Request>, data: &[u8]) -> Result<()>;

    /// The address by which a peer can connect to this endpoint.
    fn address(&self) -> Result<String>;

    fn peer_address(&self) -> Result<String>;

    /// Ends the connection in order, and ends every outstanding operation.
    fn shutdown(&self) -> Result<()>;

    /// Closes the endpoint; posted receives get error entries. `EBUSY`: the connection is over, but the endpoint stays open
    /// for completions that cannot come yet.
    fn close(&self) -> Result<()>;

    /// Posts an RMA operation of any shape. `descs` holds a descriptor for each local piece, or is empty. The C caller has
    /// promised that the pieces stay as the operation needs them until it completes; the same holds for `send` and `recv`.
    fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], common: &Common, descs: &[u64]) -> Result<()>;

    /// The largest number of elements of such an atomic operation (`what.count` is ignored). An error: the provider has no
    /// such operation.
    fn atomic_valid(&self, _what: Atomic) -> Result<usize> {
        Err(Error::fixed(errno::EOPNOTSUPP, "ep: this provider has no atomic operations"))
    }

    /// Posts an atomic operation whose arguments were checked. The operands are read during this call; the old values are in
    /// place when the operation completes.
    fn atomic(&self, _op: &AtomicOp, _common: &Common) -> Result<()> {
        Err(Error::fixed(errno::EOPNOTSUPP, "ep: this provider has no atomic operations"))
    }

    /// Moves a list of blocks by the provider's own means, in any order: no block needs bytes of another. `common` has the
    /// flag `PART`, so an operation left in flight ends as a part of a list does (`bind::Ends`). An error: this side's
    /// arguments are wrong.
    fn list(&self, _dir: Dir, _list: &List, _common: &Common) -> Result<Native> {
        Ok(Native::Pieces)
    }

    /// Posts a part of a list for which `list` has returned `Parts`: one operation of as many of the first runs as the
    /// provider takes. Returns the number of these runs; 0: nothing can be posted now. The error with which a part
    /// later ends may name the run that failed. Otherwise as `list`.
    fn list_part(&self, _dir: Dir, _runs: &[Run], _pairs: &[Pair], _common: &Common) -> Result<usize> {
        Err(Error::fixed(errno::EOPNOTSUPP, "internal error: this provider does not move lists in parts"))
    }

    fn send(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()>;

    fn recv(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()>;

    /// As `send`, for a message that is matched by its tag.
    fn tsend(&self, _local: &[Iov], _common: &Common, _descs: &[u64], _tag: u64) -> Result<()> {
        Err(no_tags())
    }

    /// As `recv`, for messages whose tag equals `tag` outside the bits of `ignore`.
    fn trecv(&self, _local: &[Iov], _common: &Common, _descs: &[u64], _tag: u64, _ignore: u64) -> Result<()> {
        Err(no_tags())
    }

    /// The endpoint as a lane of a connectionless endpoint, if it can be one.
    fn lane(&self) -> Option<&dyn Lane> {
        None
    }

    /// Cancels the oldest operation or receive with this `context` that can still be cancelled.
    fn cancel(&self, _context: usize) -> Result<()> {
        Err(Error::fixed(errno::EOPNOTSUPP, "ep: this provider cannot cancel a single operation"))
    }

    /// Makes progress once. If another thread is already making progress here, the call returns at once, unless `force` is
    /// set: the caller is about to sleep and must not miss anything.
    fn progress(&self, force: bool);

    /// True if the endpoint can be put into an idle set by `join_idle_set` at times, and then needs no polling.
    fn can_be_idle(&self) -> bool {
        false
    }

    /// Puts the idle endpoint into the idle set `at` under `number`: it needs no progress until its socket, or the
    /// endpoint itself, reports the number there, or until the returned time (nanoseconds). An endpoint may be in
    /// several idle sets. `None`: the endpoint has something to do, and was not put there.
    fn join_idle_set(&self, _at: &Arc<IdleSet>, _number: u64) -> Option<u64> {
        None
    }

    /// Takes the endpoint out of all idle sets, because the layer above has work for its progress (a list of blocks).
    fn leave_idle_sets(&self) {}

    /// Prepares for a thread's sleep: adds the endpoint's descriptors to `poller`, and tells the peer that it has to wake
    /// this side. The caller then runs the memory barrier that is returned, calls `progress(true)`, and sleeps only if
    /// `may_sleep`.
    fn sleep(&self, _poller: &Poller) -> Result<Option<Fences>> {
        Ok(None)
    }

    /// After the `progress(true)` that follows `sleep`: false if something is ready that no descriptor will announce.
    fn may_sleep(&self) -> bool {
        true
    }

    /// Undoes one `sleep`, after the thread has woken or has not slept.
    fn end_sleep(&self, _poller: Option<&Poller>) {}

    /// The longest time that a thread may sleep before this endpoint has to act by itself, for a deadline for example.
    fn sleep_limit_ns(&self) -> u64 {
        u64::MAX
    }

    /// A number that changes when the set of descriptors to watch changes.
    fn watch_version(&self) -> u64 {
        0
    }

    /// True if the endpoint waits for something that no descriptor announces.
    fn is_stalled(&self) -> bool {
        false
    }

    fn options(&self) -> Options;

    fn set_options(&self, change: &mut dyn FnMut(&mut Options));

    /// Sets whether the target's CPU helps with large copies.
    fn set_coop(&self, coop: Coop) -> Result<()> {
        if coop.is_on() { Err(no_coop()) } else { Ok(()) }
    }

    /// Sets the caller's device stream behind which device copies are queued; 0: none.
    fn set_stream(&self, stream: u64) -> Result<()> {
        self.set_options(&mut |o| o.stream = stream);
        Ok(())
    }

    /// Sets whether operations may call a device's driver in this process.
    fn set_driver_calls(&self, on: bool) -> Result<()> {
        match on {
            true => Ok(()),
            false => {
                let words = "optval: this provider copies device memory by driver calls of this process";
                Err(Error::new(errno::EOPNOTSUPP, words))
            }
        }
    }

    /// Sets the rails of connections that are made from now on.
    fn set_rails(&self, rails: RailList) -> Result<()> {
        self.set_options(&mut |o| o.rails = Some(rails));
        Ok(())
    }

    /// The value of a setting for how long an RDMA device tries before it fails an operation.
    fn effort(&self, _what: Effort) -> Result<u32> {
        Err(no_effort())
    }

    fn set_effort(&self, _what: Effort, _value: u32) -> Result<()> {
        Err(no_effort())
    }

    /// The path of operations between local memory, which is host memory if `desc` is 0, and the peer's region of this key.
    /// A connected endpoint has one peer, and ignores the index `peer`.
    fn report(&self, peer: u64, key: u64, desc: u64) -> Result<PathReport>;

    /// The rails to a peer; none, if the connection has only itself. A connected endpoint ignores the index.
    fn rail_reports(&self, _peer: u64) -> Result<Vec<RailReport>> {
        Ok(Vec::new())
    }

    fn stats(&self) -> Stats;
}

/// The error of a provider whose copies the target cannot help with.
pub fn no_coop() -> Error {
    Error::fixed(errno::EOPNOTSUPP, "GDRFAB_OPT_COOP: this provider has no copies with which the target could help")
}

fn no_tags() -> Error {
    Error::fixed(errno::EOPNOTSUPP, "ep: tagged messages need an endpoint opened with GDRFAB_TAGGED in info->caps")
}

pub fn no_effort() -> Error {
    Error::fixed(errno::ENOPROTOOPT, "optname: this option is for RDMA devices, and this endpoint uses none")
}

/// The provider's part of a passive endpoint; `pep.rs` has the common part, and calls these methods under its lock.
pub trait Listener: Send {
    fn address(&self) -> String;

    /// The most bytes of private data that accept and reject take.
    fn cm_data_size(&self) -> usize {
        CM_DATA_MAX
    }

    /// Begins to listen. Called once, and again only after a failure.
    fn listen(&mut self) -> Result<()>;

    /// Takes the connection requests that have arrived, and an error to report if some could not be taken. Also called before
    /// `listen`.
    fn poll(&mut self) -> (Vec<Box<dyn Request>>, Option<Error>);

    /// A number that changes when the set of descriptors to watch changes.
    fn watch_version(&self) -> u64 {
        0
    }

    fn watch(&self, _poller: &Poller) -> Result<()> {
        Ok(())
    }
}
