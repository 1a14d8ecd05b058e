// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The library's side: an endpoint, the operations posted on it, and a ledger from which every operation must be removed exactly once.

use super::input::Input;
use super::memory::{Area, May};
use super::peer::{Known, Peer};
use super::queues;
use gdrfab::mr::{Access, PathPolicy};
use gdrfab::mr::{Attr, Memory, RegionId, Source as From};
use gdrfab::prov::bind::{Binding, Ends, INJECT_FLAGS, PART, SILENT};
use gdrfab::prov::fast::Fast;
use gdrfab::prov::info::{Info, PROGRESS_MANUAL};
use gdrfab::prov::list::{Block, List};
use gdrfab::prov::op::{Common, Dir, Iov, RmaIov};
use gdrfab::prov::ops::OpFlags;
use gdrfab::prov::tcp::{Domain, Endpoint, HIGHEST, Link, Terms};
use gdrfab::prov::{Counter, Domain as _, Endpoint as _, EventQueue, Queue, flags};
use gdrfab::sync::serial::{Promise, Threading};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Operations at once: more would make an input slow.
const OPS: usize = 64;
const REGIONS: usize = 6;

struct Op {
    area: Area,
    addr: usize,
    kind: u64,
    /// It produces no entry on success.
    silent: bool,
}

struct Region {
    id: RegionId,
    area: Area,
}

pub struct Side {
    domain: Arc<Domain>,
    endpoint: Endpoint,
    queues: Vec<queues::WithSize>,
    counter: Arc<Counter>,
    /// Ends of parts of lists.
    ends: Arc<Ends>,
    regions: Vec<Option<Region>>,
    pub known: Vec<Known>,
    ops: BTreeMap<usize, Op>,
    /// Writes that were reported done when their bytes were sent, and may still be refused.
    told: Vec<usize>,
    next: usize,
    virt_addr: bool,
}

impl Side {
    pub fn new(input: &mut Input<'_>, socket: OwnedFd, peer: &mut Peer) -> Side {
        let how = input.byte();
        // SAFETY: a single thread makes all calls, which is what the promise says.
        let promise = unsafe { Promise::given() };
        let threading = if how & 1 != 0 { Threading::Promised(promise) } else { Threading::Safe };
        let virt_addr = how & 2 != 0;
        let mr_mode = if virt_addr { flags::MR_MODE_VIRT_ADDR } else { 0 } | if how & 4 != 0 { flags::MR_MODE_PROV_KEY } else { 0 };
        let info = Info { mr_mode, progress: PROGRESS_MANUAL, ..Info::default() };
        let domain = Arc::new(Domain::open(&info, threading).expect("a domain"));
        let endpoint = Endpoint::open(domain.clone(), &info, 7).expect("an endpoint");
        let size = if how & 8 != 0 { 4 } else { 256 };
        let sides: &[(bool, bool)] = if how & 16 != 0 { &[(true, true)] } else { &[(true, false), (false, true)] };
        let queues: Vec<_> = sides.iter().map(|_| (Arc::new(Queue::new(size, threading).unwrap()), size)).collect();
        for (&(transmit, receive), (queue, _)) in sides.iter().zip(&queues) {
            let cq = Binding::Cq { queue: queue.clone(), source: None, transmit, receive, selective: false };
            endpoint.bind(cq).expect("a queue");
        }
        let counter = Arc::new(Counter::default());
        let counted = flags::SEND | flags::RECV | flags::READ | flags::WRITE | flags::REMOTE_WRITE;
        endpoint.bind(Binding::Counter { counter: counter.clone(), flags: counted }).expect("a counter");
        endpoint.bind(Binding::Eq(Arc::new(EventQueue::default()))).expect("an event queue");
        let ends = Arc::new(Ends::default());
        endpoint.bind(Binding::Ends(ends.clone())).expect("where parts of lists end");
        endpoint.enable(OpFlags::default()).expect("enabled");
        let (theirs, ours) = ((input.byte(), input.byte()), (input.byte(), input.byte()));
        let window = |n: u8| [0, 1, 3, 1024][usize::from(n) % 4];
        let budget = |n: u8| [0, 1000, 70_000, 1 << 20][usize::from(n) % 4];
        let mut theirs = Terms { window: window(theirs.0), budget: budget(theirs.1), ..Terms::default() };
        if how & 64 != 0 {
            peer.links.become_rails();
            theirs.rails.push((std::net::Ipv4Addr::LOCALHOST, 1).into());
        }
        let short = [None, None, None, Some(1), Some(7), Some(5000)][input.below(6)];
        let link = Link { socket, version: HIGHEST, seal: None, key: None, room: None };
        endpoint.adopt(link, &theirs, (window(ours.0).max(1), budget(ours.1)), how & 32 == 0, short).expect("connected");
        let (regions, known, ops) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut side = Side { domain, endpoint, queues, counter, ends, regions, known, ops, told: Vec::new(), next: 1, virt_addr };
        (0..input.below(4)).for_each(|_| side.register(input));
        side
    }

    /// Brings a rail up.
    pub fn join(&self, number: usize, generation: u32, socket: UnixStream) {
        let link = Link { socket: socket.into(), version: HIGHEST, seal: None, key: None, room: None };
        self.endpoint.adopt_rail(number, generation, link).expect("a rail");
    }

    pub fn register(&mut self, input: &mut Input<'_>) {
        if self.regions.len() >= REGIONS {
            return;
        }
        let (may, rights) = match input.below(4) {
            0 => (May::Both, Access::REMOTE_READ | Access::REMOTE_WRITE),
            1 => (May::Read, Access::REMOTE_READ | Access::READ),
            2 => (May::Write, Access::REMOTE_WRITE | Access::WRITE),
            _ => (May::Nothing, Access::READ | Access::WRITE | Access::SEND | Access::RECV),
        };
        let area = Area::new(input.size().max(1), may);
        let pieces: Vec<_> = area.pieces(1 + input.below(3)).into_iter().filter(|p| !p.is_empty()).collect();
        let asked = Attr {
            source: From::Iov(&pieces),
            memory: Memory::Host,
            access: rights,
            offset: if self.virt_addr { 0 } else { [0, 4096, 1 << 40][input.below(3)] },
            requested_key: 1 + self.regions.len() as u64,
            policy: PathPolicy::default(),
            rma_event: input.flag(),
        };
        let event = asked.rma_event;
        let id = self.domain.register(&asked).expect("a region");
        if event {
            self.domain.bind_counter(id, self.counter.clone()).expect("a region's counter");
        }
        let facts = self.domain.facts(id).expect("facts");
        self.known.push(Known { key: id.key, base: facts.base, len: facts.len });
        self.regions.push(Some(Region { id, area }));
    }

    pub fn close_region(&mut self, which: usize) {
        let n = self.regions.len().max(1);
        if let Some(region) = self.regions.get_mut(which % n).and_then(Option::take) {
            self.domain.close_region(region.id).expect("closed");
            // The peer may have written anywhere in memory that it may write.
            region.area.end(usize::MAX);
        }
    }

    fn common(&mut self, input: &mut Input<'_>) -> Common {
        let (few, bits) = (input.byte(), [flags::REMOTE_CQ_DATA, flags::MORE, flags::FENCE, flags::COMPLETION, INJECT_FLAGS]);
        let more = [flags::INJECT_COMPLETE, flags::DELIVERY_COMPLETE, flags::INJECT];
        let flags = bits.iter().chain(&more).enumerate().filter(|(i, _)| few & 1 << i != 0).fold(0, |sum, (_, f)| sum | f);
        let timeout_ns = [0, 0, 1, 1000, u64::MAX][input.below(5)];
        Common { context: self.next, flags, data: 5, timeout_ns, ..Common::default() }
    }

    pub fn post(&mut self, input: &mut Input<'_>, peer: &mut Peer, dir: Option<Dir>) {
        let (c, size, n) = (self.common(input), input.size(), 1 + input.below(3));
        let read = dir == Some(Dir::Read);
        let area = Area::new(size, if read { May::Write } else { May::Read });
        let (local, kind) = (
            area.pieces(n),
            match dir {
                Some(Dir::Read) => flags::READ,
                Some(Dir::Write) => flags::WRITE,
                None => flags::SEND,
            },
        );
        let posted = self.ops.len() < OPS
            && match dir {
                Some(dir) => {
                    let pieces = 1 + input.below(3);
                    let one = RmaIov { addr: 64, len: size / pieces, key: 9 };
                    let mut remote = vec![one; pieces];
                    remote[0].len += size % pieces;
                    match self.fast(dir, &local, &remote, &c) {
                        Fast::Done => true,
                        Fast::Again => false,
                        Fast::Declined => self.endpoint.rma(dir, &local, &remote, &c, &[]).is_ok(),
                    }
                }
                None => self.endpoint.send(&local, &c, &[]).is_ok(),
            };
        if !posted {
            return area.end(0);
        }
        match dir {
            Some(Dir::Write) => peer.writes = peer.writes.wrapping_add(1),
            Some(Dir::Read) => peer.reads.push(size),
            None => {}
        }
        let addr = local[0].addr();
        self.next += 1;
        // The buffer of an inject call is the caller's as soon as it returns.
        let area = if !read && c.flags & flags::INJECT != 0 {
            area.end(0);
            Area::new(size, May::Read)
        } else {
            area
        };
        if dir == Some(Dir::Write) && c.flags & flags::INJECT_COMPLETE != 0 {
            self.told.push(c.context);
        }
        self.ops.insert(c.context, Op { area, addr, kind, silent: c.flags & SILENT != 0 });
    }

    /// Posts a list, which is one frame.
    pub fn post_list(&mut self, input: &mut Input<'_>, peer: &mut Peer, dir: Dir) {
        let (c, size, n) = (self.common(input), input.size().max(1), 1 + input.below(60));
        let read = dir == Dir::Read;
        let area = Area::new(size, if read { May::Write } else { May::Read });
        let block = |(i, v): (usize, &Iov)| Block { buf: v.addr(), addr: 64 + (i as u64 ^ 1) * 4096, len: v.len() };
        let blocks: Vec<Block> = area.pieces(n).iter().enumerate().map(block).collect();
        // SAFETY: the blocks are inside the area, which is kept until the operation is over.
        let list = unsafe { List::new(&blocks, &[], &[9], 1 << 30) }.expect("a list");
        let c = Common { flags: c.flags & (flags::FENCE | flags::DELIVERY_COMPLETE) | PART, ..c };
        let posted = if self.ops.len() < OPS { self.endpoint.list_part(dir, &list.runs, &list.pairs, &c).unwrap_or(0) } else { 0 };
        if posted == 0 {
            return area.end(0);
        }
        assert_eq!(posted, list.runs.len());
        match dir {
            Dir::Write => peer.writes = peer.writes.wrapping_add(1),
            Dir::Read => peer.reads.push(size),
        }
        self.next += 1;
        let kind = if read { flags::READ } else { flags::WRITE };
        self.ops.insert(c.context, Op { area, addr: list.runs[0].buf(), kind, silent: false });
    }

    /// Tries operations with one piece on each side and without a time limit on the fast path first, as the layer above does.
    fn fast(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], c: &Common) -> Fast {
        let ([l], [r], 0) = (local, remote, c.timeout_ns) else { return Fast::Declined };
        let r = (r.addr, r.key, c.context, c.flags);
        // SAFETY: the domain's threading is honoured, because a single thread makes all calls.
        unsafe {
            match (dir, self.queues[0].0.threading()) {
                (Dir::Write, Threading::Safe) => self.endpoint.rma_fast::<true, true>(*l, r.0, r.1, r.2, r.3),
                (Dir::Write, Threading::Promised(_)) => self.endpoint.rma_fast::<true, false>(*l, r.0, r.1, r.2, r.3),
                (Dir::Read, Threading::Safe) => self.endpoint.rma_fast::<false, true>(*l, r.0, r.1, r.2, r.3),
                (Dir::Read, Threading::Promised(_)) => self.endpoint.rma_fast::<false, false>(*l, r.0, r.1, r.2, r.3),
            }
        }
    }

    pub fn receive(&mut self, input: &mut Input<'_>) {
        let (c, area) = (self.common(input), Area::new(input.size(), May::Write));
        let local = area.pieces(1 + input.below(3));
        if self.ops.len() >= OPS || self.endpoint.recv(&local, &Common { flags: 0, ..c }, &[]).is_err() {
            return area.end(0);
        }
        self.next += 1;
        self.ops.insert(c.context, Op { area, addr: local[0].addr(), kind: flags::RECV, silent: false });
    }

    pub fn cancel(&mut self, which: usize) {
        if let Some(context) = self.ops.keys().nth(which % self.ops.len().max(1)).copied() {
            // It may be too late to cancel.
            let _ = self.endpoint.cancel(context);
        }
    }

    pub fn progress(&self, force: bool) {
        self.endpoint.progress(force);
    }

    /// Makes the queries that a program makes now and then.
    pub fn look(&self, key: u64) {
        self.endpoint.may_sleep();
        self.endpoint.sleep_limit_ns();
        self.endpoint.is_stalled();
        self.endpoint.stats();
        let _ = (self.endpoint.report(0, key, 0), self.endpoint.peer_address());
    }

    /// Takes up to `most` entries of each queue, and frees the memory of the operations that have ended.
    pub fn take(&mut self, most: usize) {
        for (context, _) in self.ends.take() {
            let op = self.ops.remove(&context).expect("a part of a list ended twice");
            let all = op.area.len();
            op.area.end(if op.kind == flags::READ { all } else { 0 });
        }
        for i in 0..self.queues.len() {
            for (c, error) in queues::take(&self.queues[i].0, most) {
                if c.flags & flags::REMOTE_WRITE != 0 {
                    assert!(error.is_none() && c.context == 0);
                    continue;
                }
                self.end(c.context, c.flags, c.len, c.buf, error.is_none());
            }
        }
    }

    fn end(&mut self, context: usize, kind: u64, len: usize, buf: usize, well: bool) {
        let Some(op) = self.ops.remove(&context) else {
            let at = self.told.iter().position(|t| *t == context && !well);
            self.told.remove(at.expect("an operation ended twice"));
            return;
        };
        assert!(kind & op.kind != 0 && buf == op.addr && !(well && op.silent), "the entry is another operation's");
        let all = op.area.len();
        match op.kind {
            flags::RECV => op.area.end(if well { len } else { all }),
            flags::READ => op.area.end(all),
            _ => op.area.end(0),
        }
        assert!(len <= all && (!well || op.kind == flags::RECV || len == all));
        if !well {
            self.told.retain(|t| *t != context);
        }
    }

    /// Shuts down once the goodbye can be read; it would wait for a peer that does not read.
    pub fn shutdown_when_heard(&mut self, peer: &mut Peer) {
        for _ in 0..4 {
            self.progress(false);
            if peer.pull(usize::MAX) == 0 {
                break;
            }
        }
        let _ = self.endpoint.shutdown();
    }

    /// Bytes of the lent memory.
    pub fn weight(&self) -> usize {
        let regions = self.regions.iter().flatten().map(|r| r.area.len());
        regions.chain(self.ops.values().map(|op| op.area.len())).map(|n| n + 256).sum()
    }

    /// Closes the side and checks that nothing is outstanding, no reservation is lost, and nothing holds the domain open.
    pub fn close(mut self) {
        let _ = self.endpoint.close();
        self.take(usize::MAX);
        self.ops.retain(|_, op| !op.silent);
        assert!(self.ops.is_empty(), "{} operations never ended", self.ops.len());
        queues::all_free(&self.queues);
        (0..self.regions.len()).for_each(|i| self.close_region(i));
        assert_eq!(self.domain.in_use(), (0, 0));
    }
}
