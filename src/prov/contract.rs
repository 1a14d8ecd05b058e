// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a provider is: the traits that it implements, with defaults for what it need not decide.
//!
//! Control calls go through these traits. Posting and reading go through the tables of operations in `ops.rs`, which an
//! endpoint and a completion source may choose for themselves; the default tables call `rma`, `send` and `recv` below, so a
//! provider is complete without one of its own.
//!
//! Threads: every method may be called from any thread at any time, unless the domain was opened with
//! [`Threading::Promised`]. Nothing waits, but where a method says so.

use super::atomic::{Atomic, AtomicOp};
use super::bind::{Binding, Coop, Effort, Options, RailList};
use super::flags;
use super::info::{Ask, CM_DATA_MAX, Info, Nic};
use super::lane::Lane;
use super::list::{List, Native, Pair, Run};
use super::op::{Common, Dir, Iov, RmaIov};
use super::ops::{Dispatch, OpFlags};
use super::queue::{Counter, Queue};
use super::report::{PathReport, RailReport, Stats, no_rail};
use super::request::Request;
use super::rest::Rest;
use super::source::Source;
use crate::error::{Error, Result, errno};
use crate::mr::{Access, Attr, Facts, RegionId};
use crate::sync::gate::Fences;
use crate::sync::serial::Threading;
use crate::sys::epoll::Poller;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a provider offers on this host, or why it does not.
pub struct Offer {
    pub name: &'static str,
    pub usable: Result<()>,
    /// One line per fact: what works here and what does not, and why.
    pub facts: Vec<(String, std::result::Result<String, String>)>,
}

/// Peers that a provider's endpoints reach as lanes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reach {
    /// Whoever has an IP address: its listeners have ports.
    Ports,
    /// Those on the network of its device, which has addresses of its own.
    Devices,
    /// Those of this host: its listeners have names.
    Host,
}

/// One way to reach peers. Each has a line in `prov::PROVIDERS`.
pub trait Provider: Sync {
    fn name(&self) -> &'static str;

    fn offer(&self) -> Offer;

    /// What discovery finds here, best first. What cannot serve has its `reason`.
    fn candidates(&self, ask: &Ask<'_>) -> Vec<Info>;

    /// Whether `address` is one of this provider's.
    fn check_address(&self, address: &str) -> Result<()>;

    /// The NIC behind a candidate; `near` is the PCI address of an accelerator.
    fn nic(&self, _info: &Info, _near: Option<&str>) -> Result<Nic> {
        Err(Error::new(errno::ENODATA, format!("info: provider {} has no NIC", self.name())))
    }

    fn open_domain(&self, info: &Info, threading: Threading) -> Result<Arc<dyn Domain>>;

    /// Which peers its endpoints reach as lanes of connectionless ones.
    fn reach(&self) -> Reach {
        Reach::Ports
    }

    /// Whether a key in `info->auth_key` keeps out who does not know it; where not, connectionless endpoints refuse one.
    fn heeds_keys(&self) -> bool {
        true
    }

    /// The address at which lanes of such an info listen, and are called, of the connectionless endpoint that peers know by `at`.
    fn lane_address(&self, _info: &Info, at: SocketAddr) -> String {
        format!("{}://{at}", self.name())
    }

    /// What a candidate is as a lane, or the reason why it is none.
    fn as_lane(&self, info: Info) -> Info {
        info
    }

    /// As `candidates`, of what its endpoints are as lanes of connectionless ones.
    fn lanes(&self, near: Option<&str>) -> Vec<Info> {
        self.candidates(&Ask { node: None, service: None, source: false, domain: None, near })
    }

    /// What a domain and endpoints are opened with that are lanes of those of `info`, of either kind. Keys are drawn above, so that all lanes
    /// have the same.
    fn lane_info(&self, info: &Info) -> Result<Info> {
        let (mr_mode, prov_name) = (info.mr_mode & !flags::MR_MODE_PROV_KEY, Some(self.name().into()));
        Ok(Info { mr_mode, prov_name, src_addr: None, dest_addr: None, comp_order: 0, ..info.clone() })
    }

    /// Takes the address that `info->src_addr` names, or one of its own; it listens later.
    fn open_listener(&self, info: &Info) -> Result<Box<dyn Listener>>;
}

/// Regions, memory, and what endpoints are opened in.
pub trait Domain: Send + Sync {
    /// How many open regions and allocations keep the domain open.
    fn in_use(&self) -> (usize, usize);

    fn open_endpoint(self: Arc<Self>, info: &Info, context: usize) -> Result<Box<dyn Endpoint>>;

    /// What feeds a completion queue of `size` entries. None: the endpoints do, in their turns of progress.
    fn open_source(self: Arc<Self>, _size: usize, _queue: &Arc<Queue>) -> Result<Option<Arc<dyn Source>>> {
        Ok(None)
    }

    /// News comes as a cache line, without a system call: a read that finds nothing pauses the CPU.
    fn polls_memory(&self) -> bool {
        false
    }

    /// Further tcp connections for long transfers of endpoints that are told no number, and the largest number. None: not
    /// of this provider.
    fn tcp_streams(&self) -> Option<(u32, u32)> {
        None
    }

    /// The rails that these interfaces and addresses are; none: that endpoints have which are told of none.
    fn rails(&self, _words: Option<&str>) -> Result<RailList> {
        Err(Error::fixed(errno::ENOPROTOOPT, "optname: only over tcp are rails an endpoint's own (verbs: GDRFAB_VERBS_RAILS)"))
    }

    /// Whether a card carries out atomics on regions that are registered for that. An error: none does, and no such region
    /// is registered.
    fn check_card_atomics(&self) -> Result<()> {
        Err(Error::fixed(
            errno::EOPNOTSUPP,
            "access: GDRFAB_ATOMIC: atomics of this domain are carried out by CPUs, in any region; a card's take a domain over verbs",
        ))
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId>;

    /// As `register` for one range of host memory, any path, and keys and addresses of the provider's choice; checked by the
    /// caller. The name goes to its place at once: a copy of fresh words waits for each. False: nothing was done.
    fn register_fast(&self, _iov: Iov, _access: Access, _id: &mut RegionId) -> bool {
        false
    }

    /// The library lends regions here, beside the `mr_cnt` that the program may have, and counts them.
    fn make_room(&self) {}

    /// Lets peers read one range of host memory under a key that no caller chose, whatever `mr_mode` says of keys, until
    /// `take_back`. `None`: nothing was done, `register` does it.
    fn lend(&self, _iov: Iov) -> Option<RegionId> {
        None
    }

    /// As `try_close_region` for memory whose key one peer was told, if any: that peer has said since that it is through.
    fn take_back(&self, id: RegionId) -> Result<()> {
        self.try_close_region(id)
    }

    /// By which address and key the peer at the end of a lane reads a message that lies in a region; `None`: by those of the
    /// region. An error: not at all.
    fn message_name(&self, _id: RegionId, _iov: Iov) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }

    /// Whether a region may be closed while a peer may read it: the read fails, and nothing else does.
    fn can_cut_off(&self) -> bool {
        true
    }

    /// When this returns `Ok`, no peer reaches the memory. `EBUSY`: one still may, and it can be called again. It waits,
    /// but not for ever.
    fn close_region(&self, id: RegionId) -> Result<()>;

    /// As `close_region`, without waiting: for calls that serve several peers, one of which may not go on.
    fn try_close_region(&self, id: RegionId) -> Result<()> {
        self.close_region(id)
    }

    fn facts(&self, id: RegionId) -> Result<Facts>;

    fn explain_region(&self, id: RegionId) -> Result<String>;

    /// Counts peers' writes into the region, where the provider sees them.
    fn bind_counter(&self, _id: RegionId, _counter: Arc<Counter>) -> Result<()> {
        Err(Error::fixed(errno::EOPNOTSUPP, "mr: this provider does not see a peer's plain writes; use writes with data"))
    }

    /// Open regions that touch `[addr, addr+len)`.
    fn regions_covering(&self, addr: u64, len: u64) -> usize;

    /// Memory that peers reach by the fastest path there is.
    fn allocate(&self, len: usize) -> Result<usize>;

    fn free(&self, addr: usize) -> Result<()>;
}

/// A connected endpoint.
pub trait Endpoint: Send + Sync {
    /// The handle that events name.
    fn set_object(&self, object: usize);

    /// Bytes of private data that connect and accept take.
    fn cm_data_size(&self) -> usize {
        CM_DATA_MAX
    }

    /// Before `enable` only.
    fn bind(&self, what: Binding) -> Result<()>;

    /// Enables it for operations that are posted with `op_flags` by default.
    fn enable(&self, op_flags: OpFlags) -> Result<()>;

    /// The table of operations of an endpoint that is enabled. None: the general one, whose entries call `rma`, `send` and
    /// `recv`.
    fn dispatch(&self) -> Option<Dispatch> {
        None
    }

    fn connect(&self, address: &str, data: &[u8]) -> Result<()>;

    /// Connects by exchanged addresses: both sides call it.
    fn connect_addr(&self, _address: &str) -> Result<()> {
        Err(Error::fixed(errno::EOPNOTSUPP, "ep: this provider connects by a passive endpoint"))
    }

    /// Accepts; on failure the request is lost, as its peer is.
    fn accept(&self, request: Box<dyn Request>, data: &[u8]) -> Result<()>;

    /// The address by which a peer can connect to this endpoint.
    fn address(&self) -> Result<String>;

    fn peer_address(&self) -> Result<String>;

    /// Says goodbye and ends everything outstanding.
    fn shutdown(&self) -> Result<()>;

    /// The endpoint ends; posted receives get their error entries. `EBUSY`: it is over, but stays open for entries that
    /// cannot come yet.
    fn close(&self) -> Result<()>;

    /// Posts an RMA operation of any shape; `descs` of each local piece, or none. The caller of the C API promised that the
    /// pieces stay as the operation needs them until it completes; so for `send` and `recv`.
    fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], common: &Common, descs: &[u64]) -> Result<()>;

    /// Most elements that an operation takes (`what.count` counts for nothing). An error: there is none such.
    fn atomic_valid(&self, _what: Atomic) -> Result<usize> {
        Err(Error::fixed(errno::EOPNOTSUPP, "ep: this provider has no atomic operations"))
    }

    /// Posts an atomic operation, which was checked. Operands are read at once; the old values come by the completion.
    fn atomic(&self, _op: &AtomicOp, _common: &Common) -> Result<()> {
        Err(Error::fixed(errno::EOPNOTSUPP, "ep: this provider has no atomic operations"))
    }

    /// Moves a list of blocks by means of the provider's own, none of which needs another's bytes. `common` has the flag
    /// `PART`: an operation that flies ends as its other parts do. An error: this side's part of it is wrong.
    fn list(&self, _dir: Dir, _list: &List, _common: &Common) -> Result<Native> {
        Ok(Native::Pieces)
    }

    /// Where `list` gave `Parts`: posts one operation of as many of the runs as it takes, and gives how many; 0: not now. As
    /// `list` otherwise; the error that a part ends with may name its run.
    fn list_part(&self, _dir: Dir, _runs: &[Run], _pairs: &[Pair], _common: &Common) -> Result<usize> {
        Err(Error::fixed(errno::EOPNOTSUPP, "ep: this provider does not move lists in parts"))
    }

    fn send(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()>;

    fn recv(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()>;

    /// As `send`, matched by its tag.
    fn tsend(&self, _local: &[Iov], _common: &Common, _descs: &[u64], _tag: u64) -> Result<()> {
        Err(no_tags())
    }

    /// As `recv`, for messages whose tag is `tag` but for the bits of `ignore`.
    fn trecv(&self, _local: &[Iov], _common: &Common, _descs: &[u64], _tag: u64, _ignore: u64) -> Result<()> {
        Err(no_tags())
    }

    /// The endpoint as a link of a connectionless one, if it can be that.
    fn lane(&self) -> Option<&dyn Lane> {
        None
    }

    /// Cancels the first operation or receive of `context` that still can be.
    fn cancel(&self, _context: usize) -> Result<()> {
        Err(Error::fixed(errno::EOPNOTSUPP, "ep: this provider takes back no operation alone"))
    }

    /// One turn of progress. Another thread that is inside is turn enough, unless `force` says that this is the last look
    /// before sleeping.
    fn progress(&self, force: bool);

    /// Whether `rest` is worth a call.
    fn can_rest(&self) -> bool {
        false
    }

    /// Lets the endpoint rest: it needs no progress until it is called by this number, by its descriptors or by itself, or the
    /// time that is given has come. It may rest with several. `None`: it has something to do.
    fn rest(&self, _at: &Arc<Rest>, _number: u64) -> Option<u64> {
        None
    }

    /// Ends its rest: there is something to do that it does not know of.
    fn rouse(&self) {}

    /// Watches the endpoint's descriptors with `poller`, and lets the peer know if it has to wake this side. The caller then
    /// runs the barrier that is returned, `progress` once more, and sleeps if `may_sleep`.
    fn sleep(&self, _poller: &Poller) -> Result<Option<Fences>> {
        Ok(None)
    }

    /// After the look that follows `sleep`: whether nothing waits that no descriptor announces.
    fn may_sleep(&self) -> bool {
        true
    }

    /// Undoes one `sleep`.
    fn awake(&self, _poller: Option<&Poller>) {}

    /// How long a sleeper may sleep before this endpoint has something to do by itself.
    fn nap_ns(&self) -> u64 {
        u64::MAX
    }

    /// Changes when there is something else to watch than before.
    fn watched(&self) -> u64 {
        0
    }

    /// Whether something is awaited that no descriptor announces.
    fn is_stalled(&self) -> bool {
        false
    }

    fn options(&self) -> Options;

    fn set_options(&self, change: &mut dyn FnMut(&mut Options));

    /// Large copies that the target helps with.
    fn set_coop(&self, coop: Coop) -> Result<()> {
        if coop.is_on() { Err(no_coop()) } else { Ok(()) }
    }

    /// The caller's stream behind which device copies go; 0: none.
    fn set_stream(&self, stream: u64) -> Result<()> {
        self.set_options(&mut |o| o.stream = stream);
        Ok(())
    }

    /// Whether operations may call a device's driver in this process.
    fn set_driver_calls(&self, on: bool) -> Result<()> {
        match on {
            true => Ok(()),
            false => {
                let words = "optval: this provider copies device memory by calling its driver in this process";
                Err(Error::new(errno::EOPNOTSUPP, words))
            }
        }
    }

    /// Rails of connections that are made from now on.
    fn set_rails(&self, rails: RailList) -> Result<()> {
        self.set_options(&mut |o| o.rails = Some(rails));
        Ok(())
    }

    /// How hard an RDMA device tries before it fails an operation.
    fn effort(&self, _what: Effort) -> Result<u32> {
        Err(no_effort())
    }

    fn set_effort(&self, _what: Effort, _value: u32) -> Result<()> {
        Err(no_effort())
    }

    /// Which path operations take between memory of this side, host memory if `desc` is 0, and the peer's region.
    fn report(&self, key: u64, desc: u64) -> Result<PathReport>;

    /// The same to one of several peers, which an index names; a connected endpoint has one.
    fn report_to(&self, _peer: u64, key: u64, desc: u64) -> Result<PathReport> {
        self.report(key, desc)
    }

    /// One of several rails to a peer; a connected endpoint has one peer, whatever the index.
    fn rail(&self, _peer: u64, _number: usize) -> Result<RailReport> {
        Err(no_rail())
    }

    fn stats(&self) -> Stats;
}

pub fn no_coop() -> Error {
    Error::fixed(errno::EOPNOTSUPP, "GDRFAB_OPT_COOP: the target helps with no copies of this provider")
}

fn no_tags() -> Error {
    Error::fixed(errno::EOPNOTSUPP, "ep: tagged messages need an endpoint opened with GDRFAB_TAGGED in info->caps")
}

pub fn no_effort() -> Error {
    Error::fixed(errno::ENOPROTOOPT, "optname: an option of RDMA devices; this endpoint has none")
}

/// What a passive endpoint listens with; `pep.rs` has the rest of one. The methods are called under its lock.
pub trait Listener: Send {
    fn address(&self) -> String;

    /// Bytes of private data that accept and reject take.
    fn cm_data_size(&self) -> usize {
        CM_DATA_MAX
    }

    /// Once; again only after it failed.
    fn listen(&mut self) -> Result<()>;

    /// Takes connection requests that have come, and what is to be told of those that could not be taken. Called before
    /// `listen` as well.
    fn poll(&mut self) -> (Vec<Box<dyn Request>>, Option<Error>);

    /// Changes when there is something else to watch than before.
    fn watched(&self) -> u64 {
        0
    }

    fn watch(&self, _poller: &Poller) -> Result<()> {
        Ok(())
    }
}
