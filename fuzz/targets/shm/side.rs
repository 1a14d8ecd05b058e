// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The library's side: an endpoint, the operations posted on it, and a ledger from which every operation must be removed exactly once.

use super::input::Input;
use super::memory::{Area, May};
use super::peer::Known;
use super::queues;
use super::world::{cpu_ns, world};
use gdrfab::mr::{Access, PathPolicy, Paths};
use gdrfab::mr::{Attr, Memory, RegionId, Source as From};
use gdrfab::prov::bind::{Binding, Coop, INJECT_FLAGS, SILENT};
use gdrfab::prov::general::EndpointCore;
use gdrfab::prov::op::{Common, Dir, Iov, RmaIov};
use gdrfab::prov::ops::{CqFormat, DataEntry, OpFlags, Owner};
use gdrfab::prov::queue::Completion;
use gdrfab::prov::shm::{Domain, Endpoint, Listener};
use gdrfab::prov::{Counter, Domain as _, Endpoint as _, EventQueue, PassiveEndpoint, Queue, Request, flags};
use gdrfab::sync::serial::{Promise, Threading};
use gdrfab::sys::epoll::Poller;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Operations at once: more would make an input slow.
const OPS: usize = 64;
const REGIONS: usize = 6;
/// Bytes of memory that the library allocates and that peers may map.
const SHARED: usize = 480 << 10;
/// CPU time that no call may exceed, whatever the peer does.
const CALL_NS: u64 = 250_000_000;

/// The local memory of an operation.
enum Local {
    Area(Area),
    /// A part of the memory that peers may map; its length.
    Shared(usize),
}

impl Local {
    fn len(&self) -> usize {
        match self {
            Local::Area(area) => area.len(),
            Local::Shared(len) => *len,
        }
    }

    fn end(self, written: usize) {
        if let Local::Area(area) = self {
            area.end(written);
        }
    }
}

struct Op {
    local: Local,
    addr: usize,
    kind: u64,
    /// It produces no entry on success.
    silent: bool,
}

struct Region {
    id: RegionId,
    area: Option<Area>,
}

pub struct Side {
    domain: Arc<Domain>,
    head: EndpointCore,
    pep: Option<PassiveEndpoint>,
    queues: Vec<queues::WithSize>,
    counter: Arc<Counter>,
    regions: Vec<Option<Region>>,
    /// Address of the memory that peers may map, and the descriptor of its region.
    shared: usize,
    desc: u64,
    poller: Poller,
    ops: BTreeMap<usize, Op>,
    next: usize,
    virt_addr: bool,
}

/// Makes a call and checks that it does not take long.
fn timed<R>(call: impl FnOnce() -> R) -> R {
    let before = cpu_ns();
    let result = call();
    let took = cpu_ns() - before;
    assert!(took < CALL_NS, "a call took {} ms", took / 1_000_000);
    result
}

impl Side {
    pub fn new(input: &mut Input<'_>) -> Side {
        let how = input.byte();
        // SAFETY: a single thread makes all calls, which is what the promise says.
        let promise = unsafe { Promise::given() };
        let threading = if how & 1 != 0 { Threading::Promised(promise) } else { Threading::Safe };
        let virt_addr = how & 2 != 0;
        let domain = Arc::new(Domain::open(threading, virt_addr, how & 4 != 0).expect("a domain"));
        let endpoint = Endpoint::open(domain.clone(), 7);
        let size = if how & 8 != 0 { 4 } else { 256 };
        let sides: &[(bool, bool)] = if how & 16 != 0 { &[(true, true)] } else { &[(true, false), (false, true)] };
        let queues: Vec<_> = sides.iter().map(|_| (Arc::new(Queue::new(size, threading).unwrap()), size)).collect();
        for (&(transmit, receive), (queue, _)) in sides.iter().zip(&queues) {
            let cq = Binding::Cq { queue: queue.clone(), source: None, transmit, receive, selective: false };
            endpoint.bind(cq).expect("a queue");
        }
        let counter = Arc::new(Counter::default());
        if how & 32 != 0 {
            let counted = flags::SEND | flags::RECV | flags::READ | flags::WRITE | flags::REMOTE_WRITE;
            endpoint.bind(Binding::Counter { counter: counter.clone(), flags: counted }).expect("a counter");
        }
        if how & 64 != 0 {
            endpoint.bind(Binding::Order).expect("an order");
        }
        endpoint.bind(Binding::Eq(Arc::new(EventQueue::default()))).expect("an event queue");
        let head = EndpointCore::new(Box::new(endpoint), Owner::here(), OpFlags::default(), 8).expect("bound");
        head.enable().expect("enabled");
        let shared = domain.allocate(SHARED).expect("shared memory");
        let poller = Poller::new().expect("a poller");
        let (regions, ops) = (Vec::new(), BTreeMap::new());
        let side = Side { domain, head, pep: None, queues, counter, regions, shared, desc: 0, poller, ops, next: 1, virt_addr };
        side.options(input.byte());
        side
    }

    fn options(&self, how: u8) {
        let forbid = [0, 0, 0, 1, 2, 3, 4, 8][usize::from(how & 7)];
        self.head.prov().set_options(&mut |o| {
            o.policy = PathPolicy { require: Paths::empty(), forbid: Paths::from_bits_truncate(forbid) };
            o.coop = Coop::of(how & 8 == 0);
            o.deadline_ns = [0, 0, 0, 1][usize::from(how >> 4 & 3)];
            o.connect_timeout_ns = if how & 64 != 0 { 1 } else { 10_000_000_000 };
        });
    }

    pub fn is_connected(&self) -> bool {
        self.head.prov().peer_address().is_ok()
    }

    /// Connects to the listener `name`.
    pub fn connect(&self, name: &str) {
        let _ = timed(|| self.head.prov().connect(&format!("shm://{name}"), b"hello"));
    }

    /// Connects by exchanged addresses, and returns this side's name.
    pub fn connect_by_name(&self, name: &str) -> String {
        let address = self.head.prov().address().expect("an address");
        let _ = timed(|| self.head.prov().connect_addr(&format!("shm://{name}")));
        address.trim_start_matches("shm://").to_string()
    }

    /// Listens at `name`.
    pub fn listen(&mut self, name: &str) {
        let pep = PassiveEndpoint::new(Box::new(Listener::open(Some(&format!("shm://{name}"))).expect("a name")), 8);
        pep.bind(Arc::new(EventQueue::default())).expect("a queue");
        pep.listen().expect("listens");
        self.pep = Some(pep);
    }

    pub fn poll(&self) -> Vec<Box<dyn Request>> {
        self.pep.as_ref().map_or(Vec::new(), |pep| timed(|| pep.poll()))
    }

    pub fn accept(&self, request: Box<dyn Request>) {
        let _ = timed(|| self.head.prov().accept(request, b"welcome"));
    }

    /// Registers memory, and returns the part of the region that a peer must know.
    pub fn register(&mut self, input: &mut Input<'_>) -> Option<Known> {
        if self.regions.len() >= REGIONS {
            return None;
        }
        let which = input.below(6);
        let (may, rights) = match which {
            0 | 4 | 5 => (May::Both, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::READ | Access::WRITE | Access::SEND),
            1 => (May::Read, Access::REMOTE_READ | Access::READ),
            2 => (May::Write, Access::REMOTE_WRITE | Access::WRITE),
            _ => (May::Nothing, Access::READ | Access::WRITE | Access::SEND | Access::RECV),
        };
        // The peer may write anywhere in memory that it may map, so such memory has no guards.
        let mapped = may == May::Both && input.flag();
        let file = mapped && which == 5;
        let area = (!mapped).then(|| Area::new(input.size().max(1), may));
        let pieces: Vec<_> = match &area {
            Some(area) => area.pieces(1 + input.below(3)).into_iter().filter(|p| !p.is_empty()).collect(),
            None => vec![self.shared_part(SHARED)],
        };
        let asked = Attr {
            source: match file {
                true => From::File { fd: world().file(1).as_fd(), offset: 4096, len: 70_000, base_addr: 4096 },
                false => From::Iov(&pieces),
            },
            memory: Memory::Host,
            access: rights,
            offset: if self.virt_addr { 0 } else { [0, 4096, 1 << 40][input.below(3)] },
            requested_key: 1 + self.regions.len() as u64,
            policy: PathPolicy::default(),
            rma_event: input.flag(),
        };
        let event = asked.rma_event;
        let mut id = RegionId::NONE;
        let plain = match &pieces[..] {
            [one] if self.virt_addr && !event && !file => self.domain.register_fast(*one, rights, &mut id),
            _ => false,
        };
        if !plain {
            id = self.domain.register(&asked).expect("a region");
        }
        if event {
            self.domain.bind_counter(id, self.counter.clone()).expect("a region's counter");
        }
        if mapped && !file {
            self.desc = id.desc;
        }
        let facts = self.domain.facts(id).expect("facts");
        self.regions.push(Some(Region { id, area }));
        Some(Known { key: id.key, base: facts.base, len: facts.len })
    }

    /// Closes a region. A peer that is marked busy may prevent it.
    pub fn close_region(&mut self, which: usize) -> bool {
        let n = self.regions.len().max(1);
        let Some(place) = self.regions.get_mut(which % n) else { return true };
        let Some(region) = place.take() else { return true };
        if timed(|| self.domain.close_region(region.id)).is_err() {
            *place = Some(region);
            return false;
        }
        // The peer may have written anywhere in memory that it may write.
        if let Some(area) = region.area {
            area.end(usize::MAX);
        }
        true
    }

    fn common(&mut self, input: &mut Input<'_>) -> Common {
        let (few, bits) = (input.byte(), [flags::REMOTE_CQ_DATA, flags::MORE, flags::FENCE, flags::COMPLETION, INJECT_FLAGS]);
        let more = [flags::INJECT_COMPLETE, flags::DELIVERY_COMPLETE, flags::INJECT];
        let flags = bits.iter().chain(&more).enumerate().filter(|(i, _)| few & 1 << i != 0).fold(0, |sum, (_, f)| sum | f);
        let timeout_ns = [0, 0, 0, 1, 1000, u64::MAX][input.below(6)];
        Common { context: self.next, flags, data: 5, timeout_ns, ..Common::default() }
    }

    pub fn post(&mut self, input: &mut Input<'_>, targets: &[Known], dir: Option<Dir>) {
        let (mut c, size, how) = (self.common(input), input.size(), input.byte());
        let read = dir == Some(Dir::Read);
        let (local, mut pieces) = if how & 1 == 0 {
            let area = Area::new(size, if read { May::Write } else { May::Read });
            let pieces = area.pieces(1 + usize::from(how >> 1) % 3);
            (Local::Area(area), pieces)
        } else {
            // A part of the memory that peers may map; with a descriptor, so that they can be told where it is.
            c.desc = if how & 2 != 0 { self.desc } else { 0 };
            (Local::Shared(size.min(SHARED)), vec![self.shared_part(size.min(SHARED))])
        };
        let size = local.len();
        let kind = match dir {
            Some(Dir::Read) => flags::READ,
            Some(Dir::Write) => flags::WRITE,
            None => flags::SEND,
        };
        let mut remote = Vec::new();
        if dir.is_some() {
            let parts = 1 + usize::from(how >> 3 & 7 == 7) * (1 + input.below(2));
            for k in 0..parts {
                let of = targets.get(input.below(16) % targets.len().max(1)).copied();
                let at = of.unwrap_or(Known { key: input.number(), base: 64, len: 0 });
                let addr = at.base.wrapping_add(if how & 64 != 0 { input.number() } else { 0 });
                remote.push(RmaIov { addr, len: size / parts + if k == 0 { size % parts } else { 0 }, key: at.key });
            }
            // Mostly as much as the region holds.
            if let ([r], [l], 0) = (&mut remote[..], &pieces[..], how & 128)
                && let Some(t) = targets.iter().find(|t| t.key == r.key)
            {
                r.len = l.len().min(t.len as usize);
            }
        }
        if let ([r], [l]) = (&remote[..], &mut pieces[..]) {
            *l = l.part(0, r.len);
        }
        let posted = self.ops.len() < OPS
            && timed(|| match dir {
                Some(dir) => self
                    .by_table(dir, &pieces, &remote, &c)
                    .unwrap_or_else(|| self.head.prov().rma(dir, &pieces, &remote, &c, &[c.desc]).is_ok()),
                None => self.send_by_table(&pieces, &c).unwrap_or_else(|| self.head.prov().send(&pieces, &c, &[c.desc]).is_ok()),
            });
        if !posted {
            return local.end(0);
        }
        let addr = pieces[0].addr();
        self.next += 1;
        // The buffer of an inject call is the caller's as soon as it returns.
        let local = if !read && c.flags & flags::INJECT != 0 {
            local.end(0);
            Local::Shared(size)
        } else {
            local
        };
        self.ops.insert(c.context, Op { local, addr, kind, silent: c.flags & SILENT != 0 });
    }

    /// The first bytes of the memory that peers may map.
    fn shared_part(&self, len: usize) -> Iov {
        // SAFETY: the domain owns the memory, and outlives the side.
        unsafe { Iov::new(self.shared, len) }
    }

    /// Posts operations with one piece on each side and without a time limit through the table of operations, as the C API does.
    fn by_table(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], c: &Common) -> Option<bool> {
        let ([l], [r], 0, 0) = (local, remote, c.timeout_ns, c.flags) else { return None };
        let (ops, buf, desc, context) = (self.head.head().ops(), l.as_ptr().cast(), c.desc as *mut _, c.context as *mut _);
        // SAFETY: the memory stays until the operation's entry; no other thread calls.
        let rc = unsafe {
            match dir {
                Dir::Write => (ops.write)(self.head.head(), buf, l.len(), desc, 0, r.addr, r.key, context),
                Dir::Read => (ops.read)(self.head.head(), buf, l.len(), desc, 0, r.addr, r.key, context),
            }
        };
        Some(rc == 0)
    }

    fn send_by_table(&self, local: &[Iov], c: &Common) -> Option<bool> {
        let ([l], 0, 0) = (local, c.timeout_ns, c.flags) else { return None };
        // SAFETY: the memory stays until the operation's entry; no other thread calls.
        Some(
            unsafe {
                (self.head.head().ops().send)(self.head.head(), l.as_ptr().cast(), l.len(), c.desc as *mut _, 0, c.context as *mut _)
            } == 0,
        )
    }

    pub fn receive(&mut self, input: &mut Input<'_>) {
        let more = input.byte();
        for _ in 0..if more > 200 { 32 } else { 0 } {
            self.receive_one(&mut Input(input.0));
        }
        self.receive_one(input);
    }

    fn receive_one(&mut self, input: &mut Input<'_>) {
        let (c, area) = (self.common(input), Area::new(input.size(), May::Write));
        let local = area.pieces(1 + input.below(3));
        let posted = self.ops.len() < OPS
            && timed(|| match (&local[..], c.timeout_ns) {
                // SAFETY: the memory stays until the operation's entry; no other thread calls.
                ([l], 0) => unsafe {
                    (self.head.head().ops().recv)(self.head.head(), l.as_ptr().cast(), l.len(), c.desc as *mut _, 0, c.context as *mut _)
                        == 0
                },
                _ => self.head.prov().recv(&local, &Common { flags: 0, ..c }, &[c.desc]).is_ok(),
            });
        if !posted {
            return area.end(0);
        }
        self.next += 1;
        self.ops.insert(c.context, Op { local: Local::Area(area), addr: local[0].addr(), kind: flags::RECV, silent: false });
    }

    pub fn cancel(&mut self, which: usize) {
        if let Some(context) = self.ops.keys().nth(which % self.ops.len().max(1)).copied() {
            // It may be too late to cancel.
            let _ = timed(|| self.head.prov().cancel(context));
        }
    }

    pub fn progress(&self, force: bool) {
        timed(|| self.head.prov().progress(force));
    }

    /// Makes the queries that a program makes now and then.
    pub fn look(&self, input: &mut Input<'_>, targets: &[Known]) {
        match input.below(4) {
            0 => timed(|| {
                self.head.prov().sleep(&self.poller).expect("may sleep");
                self.head.prov().progress(true);
                self.head.prov().may_sleep();
                self.head.prov().sleep_limit_ns();
                self.head.prov().end_sleep(Some(&self.poller));
                self.head.prov().watch_version();
            }),
            1 => self.options(input.byte()),
            _ => {
                self.head.prov().is_stalled();
                let key = targets.get(input.below(16) % targets.len().max(1)).map_or(1, |t| t.key);
                let _ = timed(|| {
                    (self.head.prov().report(0, key, 0).is_ok(), self.head.prov().peer_address().is_ok(), self.head.prov().stats())
                });
            }
        }
    }

    /// Takes up to `most` entries of each queue, and frees the memory of the operations that have ended.
    pub fn take(&mut self, most: usize) {
        for i in 0..self.queues.len() {
            let queue = &self.queues[i].0;
            let mut ended = queues::take(queue, most);
            // While nothing is queued, completions may bypass the queue.
            if queue.is_empty() && most > 1 && queue.threading().is_promised() {
                let most = most.min(queue.free()).min(64);
                let mut entries: Vec<DataEntry> = Vec::with_capacity(most);
                if let Some(arrive) = self.head.head().ops().arrive {
                    // SAFETY: `entries` has room for `most` entries, and there is no other thread.
                    unsafe {
                        let n =
                            timed(|| (arrive[CqFormat::Data as usize].turn)(self.head.head(), queue, entries.as_mut_ptr().cast(), most));
                        entries.set_len(n.max(0) as usize);
                    }
                }
                let entry = |e: DataEntry| Completion { context: e.context, flags: e.flags, len: e.len, buf: e.buf, data: e.data };
                ended.extend(entries.into_iter().map(|e| (entry(e), None)));
            }
            for (c, error) in ended {
                if c.flags & flags::REMOTE_WRITE != 0 {
                    assert!(error.is_none() && c.context == 0);
                    continue;
                }
                self.end(c.context, c.flags, c.len, c.buf, error.is_none());
            }
        }
    }

    fn end(&mut self, context: usize, kind: u64, len: usize, buf: usize, well: bool) {
        let op = self.ops.remove(&context).expect("an operation ended twice");
        assert!(kind & op.kind != 0 && buf == op.addr && !(well && op.silent), "the entry is another operation's");
        let all = op.local.len();
        assert!(len <= all, "more bytes than there is room for");
        match op.kind {
            flags::RECV => op.local.end(if well { len } else { all }),
            flags::READ => op.local.end(all),
            _ => op.local.end(0),
        }
    }

    pub fn shutdown(&self) {
        let _ = timed(|| self.head.prov().shutdown());
    }

    /// Bytes of the lent memory.
    pub fn weight(&self) -> usize {
        let regions = self.regions.iter().flatten().map(|r| r.area.as_ref().map_or(0, Area::len));
        regions.chain(self.ops.values().map(|op| op.local.len())).map(|n| n + 256).sum()
    }

    /// Closes the endpoint. A peer that holds a buffer may prevent it.
    pub fn close(&mut self) -> bool {
        self.pep = None;
        timed(|| self.head.prov().close()).is_ok()
    }

    /// Called after the peer's end: nothing is outstanding, no reservation is lost, nothing holds regions or the domain open.
    pub fn finish(mut self) {
        // A connection's end that the peer sent stays open until a thread has closed it.
        let soon = |close: &mut dyn FnMut() -> bool| {
            (0..1000).any(|i| {
                std::thread::sleep(std::time::Duration::from_millis(u64::from(i > 0)));
                close()
            })
        };
        assert!(soon(&mut || self.close()), "the endpoint cannot be closed although the peer is gone");
        self.take(usize::MAX);
        self.ops.retain(|_, op| !op.silent);
        let left: Vec<_> = self.ops.iter().map(|(context, op)| (context, op.kind, op.local.len())).collect();
        assert!(left.is_empty(), "operations never ended: context, kind, length: {left:?}");
        queues::all_free(&self.queues);
        for i in 0..self.regions.len() {
            assert!(soon(&mut || self.close_region(i)), "a region cannot be closed although the peer is gone");
        }
        self.domain.free(self.shared).expect("freed");
        assert_eq!(self.domain.in_use(), (0, 0));
    }
}
