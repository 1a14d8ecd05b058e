// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Getting connected: the objects of one side, the listener, and their end in the right order.

use crate::cli;
use crate::io::Link;
use crate::layout::Layout;
use crate::memory::{Kind, Memory};
use crate::provider::{Choice, Manners};
use crate::stats::Clock;
use crate::wire::{self, Place, Plan};
use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::fabric::{
    Cq, CqFormat, Domain, Endpoint, Eq, Fabric, Info, Mr, PROGRESS_AUTO, PROGRESS_MANUAL, Pep, THREAD_DOMAIN, THREAD_SAFE,
};
use gdrfab::mr::Paths;
use gdrfab::prov::wish::Facts;
use gdrfab::prov::{Event, EventKind, flags};
use gdrfab::sys::time::now_ns;
use std::sync::Arc;

/// Milliseconds that the peer may be silent, unless the command line says otherwise.
const PATIENCE_MS: u64 = 10_000;

pub fn patience_ms(plan: &Plan) -> u64 {
    if plan.deadline_ms == 0 { PATIENCE_MS } else { plan.deadline_ms }
}

/// Keeps this thread, and those that it starts later, on one CPU.
pub fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| Error::os(format_args!("pinning to CPU {cpu}"), e))
}

/// Everything that one side of a connection owns.
pub struct Side {
    pub link: Link,
    pub domain: Arc<Domain>,
    fabric: Arc<Fabric>,
    eq: Arc<Eq>,
    mr: Option<Box<Mr>>,
    /// Of the memory for control messages, where that needs one.
    mail_mr: Option<Box<Mr>>,
    /// Where the other side is, and the device that leads there.
    pub address: String,
    pub device: Option<String>,
    open: bool,
}

impl Side {
    /// Opens everything up to an enabled endpoint whose receives are posted.
    fn open(mut info: Info, plan: &Plan, memory: Kind, clock: Clock, cpu: Option<usize>) -> Result<Side> {
        info.threading = if plan.one_thread { THREAD_DOMAIN } else { THREAD_SAFE };
        info.progress = if plan.auto { PROGRESS_AUTO } else { PROGRESS_MANUAL };
        let fabric = Fabric::open(&info)?;
        let domain = Domain::open(&fabric, &info)?;
        // After the domain, so that a progress thread is not tied to the same CPU.
        pin(cpu)?;
        let layout = Layout::of(plan);
        let manners = Manners::of(&info);
        let receives = manners.receives(plan, layout.receives);
        if manners.nic {
            // Room for control messages as well.
            info.tx_size = info.tx_size.max(plan.depth + 8);
            info.rx_size = info.rx_size.max(receives);
        }
        let memory = Memory::new(memory, &domain, layout.bytes())?;
        let mr = memory.register(&domain, layout.bytes(), manners.of_region(plan.path))?;
        let mailbox = Memory::new(Kind::Malloc, &domain, layout.mailbox())?;
        let mail_mr = match layout.mailbox() {
            n if n > 0 && manners.local => Some(mailbox.register(&domain, n, manners.of_region(Paths::empty()))?),
            _ => None,
        };
        let eq = Eq::open(&fabric, false)?;
        let cq = Cq::open(&domain, 4 * plan.depth + 64 + (receives - layout.receives), CqFormat::Data, false)?;
        let ep = Endpoint::open(&domain, &info, 0)?;
        ep.bind_cq(&cq, flags::SEND | flags::SELECTIVE_COMPLETION)?;
        ep.bind_cq(&cq, flags::RECV)?;
        ep.bind_eq(&eq, 0)?;
        ep.set_coop(plan.coop);
        if !manners.nic {
            ep.set_policy(plan.path, Paths::empty());
        }
        ep.set_connect_timeout_ns(patience_ms(plan).saturating_mul(1_000_000));
        ep.enable()?;
        let patience = clock.ticks_of_us(patience_ms(plan) as f64 * 1000.0);
        let descs = (mr.desc(), mail_mr.as_ref().map_or(0, |mr| mr.desc()));
        let link = Link::new(ep, cq, memory, mailbox, plan, descs, manners, patience);
        link.post_receives(receives)?;
        let device = info.domain_name.filter(|_| manners.nic);
        let address = info.dest_addr.unwrap_or_default();
        Ok(Side { link, domain, fabric, eq, mr: Some(mr), mail_mr, address, device, open: true })
    }

    fn facts(&self) -> Result<Facts> {
        self.mr.as_ref().ok_or(Error::fixed(errno::EINVAL, "the region is closed"))?.facts()
    }

    fn place(&self) -> Result<Place> {
        let facts = self.facts()?;
        Ok(Place { base: facts.base, key: facts.key })
    }

    /// How this side's memory was registered, where that is not the same for all.
    pub fn registered(&self) -> Option<String> {
        self.device.as_ref()?;
        Some(self.facts().ok()?.paths.words())
    }

    /// Waits for the end of a connection attempt; gives what the peer sent with it.
    fn connected(&self, plan: &Plan) -> Result<Vec<u8>> {
        // The library's own limit comes first and has better words.
        let until = now_ns() + (patience_ms(plan) + 1000) * 1_000_000;
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
        let mut side = Side::open(info, plan, memory, clock, cpu)?;
        side.link.ep.connect(&address, &plan.encode(side.place()?))?;
        let answer = side.connected(plan)?;
        side.link.peer =
            wire::decode_answer(&answer).ok_or(Error::fixed(errno::EPROTO, "who answered is not gdrfab-perf, or of another version"))?;
        Ok(side)
    }

    /// Ends everything; the first failure is told, the rest is closed all the same.
    pub fn close(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.open) {
            return Ok(());
        }
        let mut first = self.link.ep.close();
        for mr in [self.mr.take(), self.mail_mr.take()].into_iter().flatten() {
            first = first.and(mr.close());
        }
        first = first.and(self.link.memory.release());
        first = first.and(self.link.cq.close()).and(self.eq.close()).and(self.domain.check_close());
        self.domain.close();
        first.and(self.fabric.check_close())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Whoever wants to know how it went has called close.
        let _ = self.close();
    }
}

/// The next event of a queue; none if none came in time.
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
    /// Bytes that a refusal can carry.
    room: usize,
}

impl Listener {
    pub fn open(name: &str, choice: &Choice) -> Result<Listener> {
        let info = choice.discover(Some(name), true)?;
        let fabric = Fabric::open(&info)?;
        let eq = Eq::open(&fabric, false)?;
        let pep = Pep::open(&fabric, &info, 0)?;
        pep.bind_eq(&eq, 0)?;
        pep.listen()?;
        let room = Manners::of(&info).private.min(256);
        Ok(Listener { fabric, eq, pep, room })
    }

    pub fn address(&self) -> String {
        self.pep.address()
    }

    /// Waits for a client, gets ready for its plan, and accepts it.
    pub fn accept(&self, clock: Clock, cpu: Option<usize>) -> Result<(Side, Plan)> {
        loop {
            let Some(mut event) = next_event(&self.eq, 1000)? else { continue };
            let Some(info) = self.eq.request_info(&mut event) else { continue };
            let Some(request) = info.request else { continue };
            let (plan, place) = match Plan::decode(&event.data) {
                Ok(plan) => plan,
                Err(words) => {
                    cli::complain(&format!("gdrfab-perf: a client was turned away: {words}"));
                    self.pep.reject(request, wire::clip(words, self.room))?;
                    continue;
                }
            };
            let mut side = match Side::open(info, &plan, plan.memory, clock, cpu) {
                Ok(side) => side,
                Err(e) => {
                    // It may have been taken out of our hands, and is rejected then.
                    let _ = self.pep.reject(request, wire::clip(&e.to_string(), self.room));
                    return Err(e.context("getting ready for a client"));
                }
            };
            side.link.peer = place;
            side.link.ep.accept(&wire::encode_answer(side.place()?))?;
            side.connected(&plan)?;
            return Ok((side, plan));
        }
    }

    pub fn close(self) -> Result<()> {
        self.pep.close().and(self.eq.close()).and(self.fabric.check_close())
    }
}
