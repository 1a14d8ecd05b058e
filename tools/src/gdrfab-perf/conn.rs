// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connecting: the objects of one side, the listener, and closing everything in the right order.

use crate::args::Options;
use crate::bounds::Bounds;
use crate::cli;
use crate::io::Link;
use crate::layout::Layout;
use crate::memory::{Kind, Memory};
use crate::provider::{Choice, ProviderTraits};
use crate::stats::Clock;
use crate::wire::{self, Answer, PeerMemory, Plan};
use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::fabric::{
    Av, Coop, Cq, CqFormat, Domain, Endpoint, Eq, Fabric, Info, Mr, Name, PROGRESS_AUTO, PROGRESS_MANUAL, Pep, RequestId, THREAD_DOMAIN,
    THREAD_SAFE,
};
use gdrfab::mr::{Access, Facts, Paths};
use gdrfab::prov::{Event, EventKind, flags};
use gdrfab::sync::serial::Promise;
use gdrfab::sys::process;
use gdrfab::sys::time::{now_ns, ticks};
use std::sync::Arc;

/// Binds this thread, and the threads that it starts later, to one CPU.
pub fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| Error::os(format_args!("pinning to CPU {cpu}"), e))
}

/// Adapts the info that endpoints are opened with to the plan.
fn fit(info: &mut Info, plan: &Plan, receives: usize) -> Result<()> {
    let traits = ProviderTraits::of(info);
    let posts = plan.test.is_round_trip() || plan.both;
    match plan.inline {
        // The library takes 0 as its default, so an inline size of 0 must be set from the start, and only for a client.
        Some(0) if traits.nic && info.inject_size > 0 && posts => {
            return Err(Error::fixed(errno::EOPNOTSUPP, "--inline 0: this side posts as well; start the server with --inline 0 too"));
        }
        Some(0) | None => {}
        Some(n) => {
            let most = if info.limits.inject_size > 0 { info.limits.inject_size } else { info.inject_size };
            if n > most {
                let provider = info.prov_name.as_deref().unwrap_or_default();
                return Err(Error::new(errno::EMSGSIZE, format!("--inline {n}: {provider} takes up to {most} bytes here")));
            }
            if traits.nic {
                info.inject_size = n;
            }
        }
    }
    if traits.nic {
        // There must be room for control messages as well.
        info.tx_size = info.tx_size.max(plan.depth + 8);
        info.rx_size = info.rx_size.max(receives);
    }
    Ok(())
}

/// Everything that one side of a connection owns.
pub struct Side {
    pub link: Link,
    pub domain: Arc<Domain>,
    fabric: Arc<Fabric>,
    eq: Arc<Eq>,
    /// The address vector of connectionless endpoints.
    av: Option<Arc<Av>>,
    mr: Option<Box<Mr>>,
    /// The region of the memory for control messages, if that needs one.
    mail_mr: Option<Box<Mr>>,
    /// The address of the other side, and the device that leads there.
    pub address: String,
    pub device: Option<String>,
    pub provider: String,
    /// The bytes of the region under test, and the nanoseconds that its registration took.
    pub registered_bytes: usize,
    pub registration_ns: u64,
    pub peer_registration_ns: u64,
    /// The info with which every endpoint is opened.
    info: Info,
    /// The milliseconds that connecting may take.
    meeting_ms: u64,
    open: bool,
}

impl Side {
    /// Opens everything, up to an enabled endpoint whose receives are posted.
    pub fn open(mut info: Info, plan: &Plan, memory: Kind, clock: Clock, cpu: Option<usize>, meeting_ms: u64) -> Result<Side> {
        info.threading = if plan.one_thread { THREAD_DOMAIN } else { THREAD_SAFE };
        info.progress = if plan.auto { PROGRESS_AUTO } else { PROGRESS_MANUAL };
        let fabric = Fabric::open(&info)?;
        // SAFETY: one thread of this program uses a domain, unless the plan asks for locks.
        let domain = Domain::open(&fabric, &info, Some(unsafe { Promise::given() }))?;
        // After the domain was opened, so that a progress thread is not bound to the same CPU.
        pin(cpu)?;
        let layout = Layout::of(plan);
        let receives = ProviderTraits::of(&info).receives(plan.test, layout.receives);
        fit(&mut info, plan, receives)?;
        let traits = ProviderTraits::of(&info);
        let mut memory = Memory::new(memory, &domain, layout.bytes())?;
        // A card that carries out the atomics needs the right; elsewhere the rights to read and write are enough.
        memory.access.set(Access::ATOMIC, plan.test.action().is_some() && traits.nic);
        let registered_bytes = layout.bytes();
        let before = now_ns();
        let mr = memory.register(&domain, registered_bytes, traits.of_region(plan.path))?;
        let registration_ns = now_ns() - before;
        let mailbox = Memory::new(Kind::Malloc, &domain, layout.mailbox())?;
        let mail_mr = match traits.local {
            true => Some(mailbox.register(&domain, layout.mailbox(), traits.of_region(Paths::empty()))?),
            false => None,
        };
        let eq = Eq::open(&fabric, false)?;
        let av = if traits.rdm { Some(Av::open(&domain)?) } else { None };
        let entries = 4 * plan.depth + 64 + (receives - layout.receives) + (plan.endpoints - 1) * (2 * plan.depth + receives);
        let cq = Cq::open(&domain, entries, CqFormat::Data, false)?;
        let patience = clock.ticks_of_us(plan.patience_ms() as f64 * 1000.0);
        let descs = (mr.desc(), mail_mr.as_ref().map_or(0, |mr| mr.desc()));
        let link = Link::new(cq, memory, mailbox, plan, descs, traits, patience);
        let device = info.domain_name.clone().filter(|_| info.paths.contains(Paths::NIC));
        let address = info.dest_addr.clone().unwrap_or_default();
        let provider = info.prov_name.clone().unwrap_or_default();
        let mut side = Side {
            link,
            domain,
            fabric,
            eq,
            av,
            mr: Some(mr),
            mail_mr,
            address,
            device,
            provider,
            registered_bytes,
            registration_ns,
            peer_registration_ns: 0,
            info,
            meeting_ms,
            open: true,
        };
        let request = side.info.request.take();
        side.add(request, plan)?;
        Ok(side)
    }

    /// Opens one more endpoint, which accepts `request` if there is one.
    pub fn add(&mut self, request: Option<RequestId>, plan: &Plan) -> Result<()> {
        let info = Info { request, ..self.info.clone() };
        let traits = self.link.traits;
        let ep = Endpoint::open(&self.domain, &info, 0)?;
        ep.bind_cq(&self.link.cq, flags::SEND | flags::SELECTIVE_COMPLETION)?;
        ep.bind_cq(&self.link.cq, flags::RECV)?;
        match &self.av {
            Some(av) => ep.bind_av(av, 0)?,
            None => ep.bind_eq(&self.eq, 0)?,
        }
        if !plan.coop {
            ep.set_coop(Coop::Off)?;
        }
        if !traits.nic {
            ep.set_policy(plan.path, Paths::empty());
        }
        ep.set_connect_timeout_ns(self.meeting_ms.saturating_mul(1_000_000));
        ep.enable()?;
        // Control messages go through the first endpoint only.
        let receives = if self.link.eps.is_empty() || plan.test.is_message() { self.link.layout.receives } else { 0 };
        self.link.add(ep, if receives > 0 { traits.receives(plan.test, receives) } else { 0 })
    }

    /// Connects endpoint `lane` with its counterpart, or inserts the counterpart's name, so that the first message connects.
    pub fn reach(&self, lane: usize, address: &str) -> Result<()> {
        let Some(av) = &self.av else { return self.link.eps[lane].connect_addr(address) };
        match av.insert(&address.parse::<Name>()?.encode())? {
            index if index == lane as u64 => Ok(()),
            _ => Err(Error::fixed(errno::EPROTO, "the peer gave the same address for two endpoints")),
        }
    }

    /// The endpoint that was opened last.
    fn newest(&self) -> Result<&Arc<Endpoint>> {
        self.link.eps.last().ok_or(Error::fixed(errno::EINVAL, "there is no endpoint"))
    }

    fn facts(&self) -> Result<Facts> {
        self.mr.as_ref().ok_or(Error::fixed(errno::EINVAL, "the region is closed"))?.facts()
    }

    pub fn place(&self) -> Result<PeerMemory> {
        let facts = self.facts()?;
        Ok(PeerMemory { base: facts.base, key: facts.key })
    }

    /// The answer of this side, a server, to its client.
    pub fn answer(&self, token: u64) -> Result<Vec<u8>> {
        Ok(Answer { place: self.place()?, registration_ns: self.registration_ns, token }.encode())
    }

    /// Takes over the values of the server's answer.
    pub fn hear(&mut self, answer: &Answer) {
        (self.link.peer, self.peer_registration_ns) = (answer.place, answer.registration_ns);
    }

    /// The way in which this side's memory was registered, if it is not the same for all.
    pub fn registered(&self) -> Option<String> {
        self.link.traits.nic.then_some(())?;
        Some(self.facts().ok()?.paths.words())
    }

    /// The length up to which operations travel with their requests; `None` if it was not set and no device does so by
    /// itself.
    pub fn inline(&self, plan: &Plan) -> Option<usize> {
        if self.link.traits.nic { Some(self.link.traits.inject) } else { plan.inline }
    }

    /// Waits for the end of a connection attempt, and returns the peer's private data.
    pub fn connected(&self) -> Result<Vec<u8>> {
        // The library's own time limit ends first, and has better words.
        let until = now_ns() + (self.meeting_ms + 1000) * 1_000_000;
        while now_ns() < until {
            let Some(event) = next_event(&self.eq, 100)? else { continue };
            match event.error {
                Some(e) if e.code == Code::Rejected && !event.data.is_empty() => {
                    return Err(Error::coded(
                        e.errno,
                        e.code,
                        format!("the server turned us away: {}", String::from_utf8_lossy(&event.data)),
                    ));
                }
                Some(e) => return Err(e.context("connecting")),
                None if event.kind == EventKind::Connected as u32 => return Ok(event.data),
                None => return Err(Error::fixed(errno::ECONNRESET, "the connection ended before it began")),
            }
        }
        Err(Error::fixed(errno::ETIMEDOUT, "the peer did not answer the connection request in time"))
    }

    /// Connects to a server.
    pub fn dial(server: &str, choice: &Choice, plan: &Plan, memory: Kind, clock: Clock, cpu: Option<usize>) -> Result<Side> {
        let info = choice.discover(Some(server), false)?;
        let address = info.dest_addr.clone().ok_or(Error::fixed(errno::EINVAL, "the server's address makes no sense"))?;
        let mut side = Side::open(info, plan, memory, clock, cpu, plan.patience_ms())?;
        side.newest()?.connect(&address, &plan.encode(side.place()?))?;
        let answer = side.connected()?;
        let answer =
            Answer::decode(&answer).ok_or(Error::fixed(errno::EPROTO, "who answered is not gdrfab-perf, or of another version"))?;
        side.hear(&answer);
        for lane in 1..plan.endpoints {
            let of = |e: Error| e.context(format_args!("endpoint {} of {}", lane + 1, plan.endpoints));
            side.add(None, plan)?;
            side.newest()?.connect(&address, &wire::encode_join(answer.token, lane)).map_err(of)?;
            side.connected().map_err(of)?;
        }
        Ok(side)
    }

    /// Checks that the peer is still there, while nothing is expected from it.
    fn check_alive(&mut self) -> Result<()> {
        self.link.poll()?;
        match next_event(&self.eq, 0)? {
            Some(_) => Err(Error::coded(errno::ECONNRESET, Code::PeerGone, "the client left before all its endpoints were connected")),
            None => Ok(()),
        }
    }

    /// Closes everything. The first failure is returned, and the rest is closed all the same.
    pub fn close(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.open) {
            return Ok(());
        }
        let mut first = Ok(());
        for ep in &self.link.eps {
            first = first.and(ep.close());
        }
        for mr in [self.mr.take(), self.mail_mr.take()].into_iter().flatten() {
            first = first.and(mr.close());
        }
        first = first.and(self.link.memory.release());
        first = first.and(self.av.take().map_or(Ok(()), |av| av.close()));
        first = first.and(self.link.cq.close()).and(self.eq.close()).and(self.domain.check_close());
        self.domain.close();
        first.and(self.fabric.check_close())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // A caller that wants the result calls `close`.
        let _ = self.close();
    }
}

/// The next event of a queue; `None` if none came in time.
fn next_event(eq: &Eq, timeout_ms: i32) -> Result<Option<Event>> {
    match eq.sread(timeout_ms, |_| (true, ())) {
        Ok(got) => Ok(got.and_then(|(_, event)| event)),
        Err(e) if e.errno == errno::EINTR => Ok(None),
        Err(e) => Err(e),
    }
}

pub struct Listener {
    fabric: Arc<Fabric>,
    eq: Arc<Eq>,
    pep: Arc<Pep>,
    /// The bytes that a rejection can carry.
    room: usize,
    bounds: Bounds,
}

impl Listener {
    pub fn open(name: &str, o: &Options) -> Result<Listener> {
        let info = o.choice.discover(Some(name), true)?;
        let fabric = Fabric::open(&info)?;
        let eq = Eq::open(&fabric, false)?;
        let pep = Pep::open(&fabric, &info, 0)?;
        pep.bind_eq(&eq, 0)?;
        pep.listen()?;
        let room = ProviderTraits::of(&info).private.min(256);
        Ok(Listener { fabric, eq, pep, room, bounds: o.bounds.clone() })
    }

    pub fn address(&self) -> String {
        self.pep.address()
    }

    /// Waits for a client whose plan can be served, and accepts it with all its endpoints. Clients that fail before that are
    /// turned away.
    pub fn accept(&self, clock: Clock, cpu: Option<usize>) -> Result<(Side, Plan)> {
        loop {
            let Some((info, request, hello)) = self.request(1000)? else { continue };
            let wanted = Plan::decode(&hello).map_err(String::from).and_then(|(plan, place)| Ok((self.bounds.admit(plan)?, place)));
            let outcome = match wanted {
                Ok((plan, place)) => self.meet(info, &plan, place, clock, cpu).map(|side| (side, plan)).map_err(|e| e.to_string()),
                Err(words) => Err(words),
            };
            match outcome {
                Ok(met) => return Ok(met),
                Err(words) => {
                    cli::complain(&format!("gdrfab-perf: a client was turned away: {words}"));
                    // The request may have ended meanwhile, and is then rejected already.
                    let _ = self.pep.reject(request, wire::clip(&words, self.room));
                }
            }
        }
    }

    fn meet(&self, info: Info, plan: &Plan, place: PeerMemory, clock: Clock, cpu: Option<usize>) -> Result<Side> {
        let mut side = Side::open(info, plan, plan.memory, clock, cpu, self.bounds.meeting_ms(plan))?;
        side.link.peer = place;
        let mut raw = [0u8; 8];
        process::random(&mut raw)?;
        let token = u64::from_ne_bytes(raw);
        side.newest()?.accept(&side.answer(token)?)?;
        side.connected()?;
        for lane in 1..plan.endpoints {
            self.join(&mut side, plan, token, lane as u64)?;
        }
        side.link.heard = ticks();
        Ok(side)
    }

    /// A client's request and its private data; `None` if none came in time.
    fn request(&self, timeout_ms: i32) -> Result<Option<(Info, RequestId, Vec<u8>)>> {
        let Some(mut event) = next_event(&self.eq, timeout_ms)? else { return Ok(None) };
        let Some(info) = event.info.take().map(|info| *info) else { return Ok(None) };
        let Some(request) = info.request else { return Ok(None) };
        Ok(Some((info, request, event.data)))
    }

    /// Waits for one more endpoint of the same client. Other clients are turned away meanwhile.
    fn join(&self, side: &mut Side, plan: &Plan, token: u64, lane: u64) -> Result<()> {
        let until = now_ns() + side.meeting_ms.saturating_mul(1_000_000);
        while now_ns() < until {
            side.check_alive()?;
            let Some((info, request, hello)) = self.request(20)? else { continue };
            if wire::decode_join(&hello) != Some((token, lane)) {
                self.pep.reject(request, wire::clip("busy with another client", self.room))?;
                continue;
            }
            if info.domain_name != side.info.domain_name {
                let words = "this endpoint came by another device than the first";
                self.pep.reject(request, wire::clip(words, self.room))?;
                return Err(Error::fixed(errno::EXDEV, words));
            }
            side.add(Some(request), plan)?;
            side.newest()?.accept(&[])?;
            side.connected()?;
            return Ok(());
        }
        Err(Error::coded(errno::ETIMEDOUT, Code::Deadline, format!("the client is silent: no endpoint {} of {}", lane + 1, plan.endpoints)))
    }

    pub fn close(self) -> Result<()> {
        self.pep.close().and(self.eq.close()).and(self.fabric.check_close())
    }
}
