// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One side of a connection at work: posting, polling, control messages, and waits that end.

use crate::layout::Layout;
use crate::memory::Memory;
use crate::provider::Manners;
use crate::wire::{self, Kinds, MAIL_MAX, Mail, Place, Plan};
use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::fabric::{Cq, Endpoint, PathAnswer, Stats};
use gdrfab::mr::Paths;
use gdrfab::prov::Completion;
use gdrfab::prov::flags;
use gdrfab::prov::op::{Common, Dir, Iov, RmaIov};
use gdrfab::prov::queue::Taken;
use gdrfab::sys::time::ticks;
use std::collections::VecDeque;
use std::sync::Arc;

/// Looks at memory between two turns of progress, where the path does without progress.
const LOOKS: u32 = 64;
/// From this size on helping with a copy takes longer than a look at the queue.
const LARGE: usize = 64 << 10;

/// A local and a remote range that operations use again and again.
#[derive(Clone, Copy)]
pub struct Op {
    dir: Dir,
    local: Iov,
    remote: RmaIov,
    /// Beside the wish for a completion.
    flags: u64,
}

impl Op {
    /// Complete as late as `flag` says.
    pub fn complete(self, flag: u64) -> Op {
        Op { flags: flag, ..self }
    }
}

/// Counts fruitless turns; now and then it looks at the clock.
#[derive(Default)]
pub struct Spin {
    turns: u32,
    since: u64,
}

struct Arrival {
    place: usize,
    len: usize,
    control: Option<u64>,
}

pub struct Link {
    pub ep: Arc<Endpoint>,
    pub cq: Arc<Cq>,
    pub memory: Memory,
    /// Where control messages arrive, unless messages are under test.
    mailbox: Memory,
    pub layout: Layout,
    pub peer: Place,
    pub desc: u64,
    mail_desc: u64,
    pub manners: Manners,
    /// Limit for an operation; 0 = none. Receives have none: they wait for as long as it takes.
    timeout_ns: u64,
    /// Ticks that a wait for the peer may last.
    pub patience: u64,
    pub yields: bool,
    /// Completions of our own that were asked for.
    pub done: u64,
    /// Messages that are no control messages, and where the last one lies.
    pub arrived: u64,
    pub last: usize,
    /// Where messages landed since the list was emptied, if somebody wants to know.
    pub places: Option<Vec<usize>>,
    fresh: Vec<Arrival>,
    mail: VecDeque<Mail>,
    counted: Stats,
}

impl Link {
    /// `descs`: of the memory under test, and of that for control messages.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        ep: Arc<Endpoint>,
        cq: Arc<Cq>,
        memory: Memory,
        mailbox: Memory,
        plan: &Plan,
        descs: (u64, u64),
        manners: Manners,
        patience: u64,
    ) -> Link {
        Link {
            ep,
            cq,
            memory,
            mailbox,
            layout: Layout::of(plan),
            peer: Place::default(),
            desc: descs.0,
            mail_desc: descs.1,
            manners,
            timeout_ns: plan.deadline_ms.saturating_mul(1_000_000),
            patience,
            yields: plan.yields,
            done: 0,
            arrived: 0,
            last: 0,
            places: plan.verify.then(Vec::new),
            fresh: Vec::with_capacity(64),
            mail: VecDeque::new(),
            counted: Stats::default(),
        }
    }

    /// Posts every receive; from then on there is always one for a control message.
    pub fn post_receives(&self, count: usize) -> Result<()> {
        (0..count).try_for_each(|i| {
            let (place, len) = self.layout.inbox(i);
            self.post_receive(place, len)
        })
    }

    fn post_receive(&self, place: usize, len: usize) -> Result<()> {
        let desc = if self.layout.mailbox() > 0 { self.mail_desc } else { self.desc };
        let common = Common { context: place, desc, ..Common::default() };
        self.ep.recv(&[self.inbox().iov(place, len)], &common, &[common.desc])
    }

    /// The memory that receives are posted with.
    fn inbox(&self) -> &Memory {
        if self.layout.mailbox() > 0 { &self.mailbox } else { &self.memory }
    }

    /// One turn of progress, with what it brought.
    #[inline]
    pub fn poll(&mut self) -> Result<()> {
        let Link { cq, fresh, done, .. } = self;
        let taken = cq.read(32, |_, c| sort(c, fresh, done));
        self.digest(taken)
    }

    /// The same, asleep until something comes or `ms` passed.
    pub fn nap(&mut self, ms: i32) -> Result<()> {
        let Link { cq, fresh, done, .. } = self;
        match cq.sread(32, ms, |_, c| sort(c, fresh, done)) {
            Ok(taken) => self.digest(taken),
            Err(e) if e.errno == errno::EINTR => Ok(()),
            Err(e) => Err(e),
        }
    }

    #[inline]
    fn digest(&mut self, taken: Taken) -> Result<()> {
        if taken == Taken::ErrorFirst {
            return Err(self.failure());
        }
        if !self.fresh.is_empty() {
            self.take_in()?;
        }
        Ok(())
    }

    fn take_in(&mut self) -> Result<()> {
        let mut fresh = std::mem::take(&mut self.fresh);
        for a in fresh.drain(..) {
            let control = if self.manners.data { a.control } else { self.enveloped(&a) };
            match control {
                None => {
                    self.arrived += 1;
                    self.last = a.place;
                    if let Some(places) = self.places.as_mut().filter(|p| !p.contains(&a.place)) {
                        places.push(a.place);
                    }
                }
                Some(data) => {
                    let kind = Kinds::from_data(data)
                        .ok_or_else(|| Error::new(errno::EPROTO, format!("the peer sent a control message of kind {data}")))?;
                    let envelope = if self.manners.data { 0 } else { wire::ENVELOPE };
                    let bytes = self.inbox().copy_out(a.place + envelope, a.len.min(MAIL_MAX) - envelope);
                    self.mail.push_back(Mail { kind, bytes });
                    // It overwrote what lay there.
                    if let Some(places) = self.places.as_mut().filter(|_| envelope > 0) {
                        places.retain(|p| *p != a.place);
                    }
                }
            }
            let room = self.layout.inbox(0).1;
            match self.post_receive(a.place, room) {
                // A peer that said goodbye and left; what it said still counts.
                Err(e) if e.errno == errno::ENOTCONN => {}
                other => other?,
            }
        }
        self.fresh = fresh;
        Ok(())
    }

    /// The kind of a control message that carries it in front.
    fn enveloped(&self, a: &Arrival) -> Option<u64> {
        if a.len < wire::ENVELOPE || a.len > MAIL_MAX {
            return None;
        }
        wire::open_envelope(&self.inbox().copy_out(a.place, wire::ENVELOPE))
    }

    /// Why the queue holds an error.
    #[cold]
    fn failure(&mut self) -> Error {
        if let Some(said) = self.mail.iter().find(|m| m.kind == Kinds::Fail) {
            return peer_failed(said);
        }
        let Some((entry, failure)) = self.cq.read_error() else {
            return Error::fixed(errno::EIO, "the completion queue announced an error and has none");
        };
        let what = match entry.flags {
            f if f & flags::READ != 0 => "a read",
            f if f & flags::WRITE != 0 => "a write",
            f if f & flags::SEND != 0 => "a message",
            _ => "waiting for the peer",
        };
        if failure.error.code == Code::PeerGone { failure.error } else { failure.error.context(what) }
    }

    /// A turn that found nothing. Ends a wait that lasts too long.
    #[inline]
    pub fn idle(&self, spin: &mut Spin, what: &str) -> Result<()> {
        if self.yields {
            std::thread::yield_now();
        }
        spin.turns = spin.turns.wrapping_add(1);
        if spin.turns & 255 == 0 { self.look_at_clock(spin, what) } else { Ok(()) }
    }

    #[cold]
    fn look_at_clock(&self, spin: &mut Spin, what: &str) -> Result<()> {
        let now = ticks();
        if spin.since == 0 {
            spin.since = now;
        }
        if now - spin.since > self.patience {
            return Err(Error::coded(errno::ETIMEDOUT, Code::Deadline, format!("the peer is silent: no {what} before the deadline")));
        }
        Ok(())
    }

    pub fn wait(&mut self, what: &str, ready: impl Fn(&Link) -> bool) -> Result<()> {
        let mut spin = Spin::default();
        while !ready(self) {
            self.poll()?;
            self.idle(&mut spin, what)?;
        }
        Ok(())
    }

    /// Posts for sure, making progress until there is room.
    #[inline]
    pub fn must(&mut self, what: &str, post: impl Fn(&Link) -> Result<bool>) -> Result<()> {
        let mut spin = Spin::default();
        while !post(self)? {
            self.poll()?;
            self.idle(&mut spin, what)?;
        }
        Ok(())
    }

    pub fn op(&self, dir: Dir, size: usize) -> Op {
        let (near, far) = match dir {
            Dir::Write => (self.layout.source(size), self.layout.target(size)),
            Dir::Read => (self.layout.target(size), self.layout.source(size)),
        };
        Op {
            dir,
            local: self.memory.iov(near, size),
            remote: RmaIov { addr: self.peer.base + far as u64, len: size, key: self.peer.key },
            flags: 0,
        }
    }

    /// False: no room, make progress first.
    #[inline]
    pub fn rma(&self, op: &Op, signal: bool) -> Result<bool> {
        let flags = completion(signal) | op.flags;
        let common = Common { flags, desc: self.desc, timeout_ns: self.timeout_ns, ..Common::default() };
        posted(self.ep.rma(op.dir, &[op.local], &[op.remote], &common, &[common.desc]))
    }

    /// Sends the first `size` bytes of the source.
    #[inline]
    pub fn send(&self, size: usize, signal: bool) -> Result<bool> {
        let common = Common { flags: completion(signal), desc: self.desc, timeout_ns: self.timeout_ns, ..Common::default() };
        posted(self.ep.send(&[self.memory.iov(self.layout.source(size), size)], &common, &[common.desc]))
    }

    pub fn post_mail(&mut self, kind: Kinds, bytes: &[u8]) -> Result<()> {
        self.post_flagged(kind, bytes, Endpoint::INJECT)
    }

    /// The last message before this side closes.
    pub fn post_last(&mut self, kind: Kinds, bytes: &[u8]) -> Result<()> {
        if !self.manners.far {
            return self.post_mail(kind, bytes);
        }
        let next = self.done + 1;
        self.post_flagged(kind, bytes, flags::INJECT | flags::COMPLETION)?;
        self.wait("end of the last message", |l| l.done >= next)
    }

    fn post_flagged(&mut self, kind: Kinds, bytes: &[u8], how: u64) -> Result<()> {
        let wrapped = if self.manners.data { Vec::new() } else { [wire::envelope(kind).as_slice(), bytes].concat() };
        let bytes = if self.manners.data { bytes } else { &wrapped };
        let beside = if self.manners.data { flags::REMOTE_CQ_DATA } else { 0 };
        let local = Iov { addr: bytes.as_ptr() as usize, len: bytes.len() };
        let common = Common { flags: how | beside, data: kind as u64, ..Common::default() };
        self.must("room for a control message", |l| posted(l.ep.send(&[local], &common, &[common.desc])))
    }

    pub fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }

    pub fn take_mail(&mut self) -> Option<Mail> {
        self.mail.pop_front()
    }

    /// The next control message that is not just a sign of life; asleep meanwhile if asked.
    pub fn next_mail(&mut self, what: &str, asleep: bool) -> Result<Mail> {
        loop {
            if asleep {
                let limit = ticks().saturating_add(self.patience);
                while !self.has_mail() {
                    self.nap(100)?;
                    if ticks() > limit {
                        return Err(Error::coded(
                            errno::ETIMEDOUT,
                            Code::Deadline,
                            format!("the peer is silent: no {what} before the deadline"),
                        ));
                    }
                }
            } else {
                self.wait(what, Link::has_mail)?;
            }
            match self.take_mail() {
                Some(m) if m.kind == Kinds::Fail => return Err(peer_failed(&m)),
                Some(m) if m.kind != Kinds::Tick => return Ok(m),
                _ => {}
            }
        }
    }

    pub fn expect(&mut self, kind: Kinds, what: &str) -> Result<Mail> {
        let mail = self.next_mail(what, false)?;
        if mail.kind != kind {
            return Err(Error::new(errno::EPROTO, format!("the peer sent {:?} where {kind:?} was due", mail.kind)));
        }
        Ok(mail)
    }

    /// Tells the peer why this side gives up; it may be gone already.
    pub fn complain(&mut self, e: &Error) {
        let text = e.to_string();
        let room = MAIL_MAX.min(self.manners.inject).saturating_sub(if self.manners.data { 0 } else { wire::ENVELOPE });
        let _ = self.post_last(Kinds::Fail, wire::clip(&text, room));
    }

    /// Waits until the byte at `offset` is `want` (true) or a control message came (false).
    #[inline]
    pub fn await_byte(&mut self, offset: usize, want: u8, looks: u32) -> Result<bool> {
        let mut spin = Spin::default();
        loop {
            for _ in 0..looks {
                if self.memory.load(offset) == want {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            self.poll()?;
            if self.has_mail() {
                return Ok(self.memory.load(offset) == want);
            }
            self.idle(&mut spin, "write of the peer")?;
        }
    }

    /// How often to look at memory before making progress: seldom where nothing arrives without.
    pub fn looks(&self, size: usize, incoming: Paths) -> u32 {
        let idle = Paths::STAGED | Paths::SOCKET;
        if incoming.is_empty() || incoming.intersects(idle) || size >= LARGE { 1 } else { LOOKS }
    }

    /// The path to the peer's region. Its memory file may have to be asked for first.
    pub fn path(&mut self) -> Result<PathAnswer> {
        let mut spin = Spin::default();
        let until = ticks().saturating_add(self.patience.min(1 << 31));
        loop {
            let answer = self.ep.query(self.peer.key)?;
            if !answer.path.is_empty() || ticks() > until {
                return Ok(answer);
            }
            self.poll()?;
            self.idle(&mut spin, "path to the peer's memory")?;
        }
    }

    /// What the endpoint did since the last question.
    pub fn stats(&mut self) -> Stats {
        let (now, then) = (self.ep.stats(), self.counted);
        self.counted = now;
        Stats {
            ops_direct: now.ops_direct - then.ops_direct,
            ops_cma: now.ops_cma - then.ops_cma,
            ops_staged: now.ops_staged - then.ops_staged,
            bytes_direct: now.bytes_direct - then.bytes_direct,
            bytes_cma: now.bytes_cma - then.bytes_cma,
            bytes_staged: now.bytes_staged - then.bytes_staged,
            ops_ipc: now.ops_ipc - then.ops_ipc,
            bytes_ipc: now.bytes_ipc - then.bytes_ipc,
            ops_nic: now.ops_nic - then.ops_nic,
            bytes_nic: now.bytes_nic - then.bytes_nic,
            ops_socket: now.ops_socket - then.ops_socket,
            bytes_socket: now.bytes_socket - then.bytes_socket,
            bytes_helped: now.bytes_helped - then.bytes_helped,
            ..now
        }
    }
}

#[inline]
fn completion(signal: bool) -> u64 {
    if signal { flags::COMPLETION } else { 0 }
}

#[inline]
fn posted(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.is_again() => Ok(false),
        Err(e) => Err(e),
    }
}

#[inline]
fn sort(c: &Completion, fresh: &mut Vec<Arrival>, done: &mut u64) {
    if c.flags & flags::RECV == 0 {
        *done += 1;
        return;
    }
    let control = (c.flags & flags::REMOTE_CQ_DATA != 0).then_some(c.data);
    fresh.push(Arrival { place: c.context, len: c.len, control });
}

fn peer_failed(mail: &Mail) -> Error {
    Error::new(errno::ECONNABORTED, format!("the peer gave up: {}", mail.text()))
}
