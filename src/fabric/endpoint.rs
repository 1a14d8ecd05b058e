// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connected endpoints.

use super::cntr::Cntr;
use super::cq::Cq;
use super::domain::Domain;
use super::eq::Eq;
use super::info::Info;
use super::requests;
use super::{Context, Owner};
use crate::error::{Error, Result, errno};
use crate::mr::DEVICE_DESC;
use crate::mr::{PathPolicy, Paths};
use crate::prov;
use crate::prov::bind::Binding;
use crate::prov::event::Request;
use crate::prov::flags;
use crate::prov::on_provider;
use crate::prov::op::{Common, Dir, Iov, One, RmaIov};
use crate::prov::queue::{Completion, Queue};
use crate::sync::gate::Fences;
use crate::sys::epoll::Poller;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::prov::Armed;
pub use crate::prov::bind::{PathReport as PathAnswer, Quick, Stats};

/// What decides how hard an RDMA device tries before it fails an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    AckTimeout,
    Retries,
    RnrRetries,
    MinRnrTimer,
}

#[derive(Default)]
struct Bound {
    cqs: Vec<Arc<Cq>>,
    eq: Option<Arc<Eq>>,
    cntrs: Vec<Arc<Cntr>>,
}

pub struct Endpoint {
    pub context: Context,
    domain: Arc<Domain>,
    /// The domain's, where the data path finds it.
    owner: Owner,
    /// The owner's number once nothing about this endpoint keeps operations from the shortest way; `NOBODY` before.
    short: AtomicU64,
    prov: prov::Endpoint,
    request: Mutex<Option<Box<Request>>>,
    bound: Mutex<Bound>,
    tx_op_flags: u64,
}

impl Endpoint {
    /// Opens an endpoint; one whose info carries a connection request answers that request.
    pub fn open(domain: &Arc<Domain>, info: &Info, context: usize) -> Result<Arc<Endpoint>> {
        domain.owner.check()?;
        super::info::check(info)?;
        let request = match info.request {
            None => None,
            Some(id) => Some(requests::take(id).ok_or_else(|| {
                Error::invalid("info->handle: no such connection request: answered already, or its passive endpoint is closed")
            })?),
        };
        let ep = Arc::new(Endpoint {
            context: Context::default(),
            domain: domain.clone(),
            owner: domain.owner,
            short: AtomicU64::new(Owner::NOBODY),
            prov: domain.prov.open_endpoint(info, context)?,
            request: Mutex::new(request),
            bound: Mutex::new(Bound::default()),
            tx_op_flags: info.tx_op_flags,
        });
        on_provider!(Endpoint, &ep.prov, p => p.bind(Binding::Drivers(domain.drivers.clone())))?;
        if info.comp_order != 0 {
            on_provider!(Endpoint, &ep.prov, p => p.bind(Binding::Order))?;
        }
        domain.users.add();
        on_provider!(Endpoint, &ep.prov, p => p.set_object(Arc::as_ptr(&ep) as usize));
        Ok(ep)
    }

    pub fn bind_cq(self: &Arc<Self>, cq: &Arc<Cq>, bits: u64) -> Result<()> {
        self.domain.owner.check()?;
        let known = flags::SEND | flags::RECV | flags::SELECTIVE_COMPLETION;
        if bits & !known != 0 || bits & (flags::SEND | flags::RECV) == 0 {
            return Err(Error::new(
                errno::EBADFLAGS,
                format!("flags: {bits:#x}; GDRFAB_TRANSMIT, GDRFAB_RECV or both, and GDRFAB_SELECTIVE_COMPLETION"),
            ));
        }
        if !Arc::ptr_eq(cq.domain(), &self.domain) {
            return Err(Error::invalid("cq: belongs to another domain than the endpoint"));
        }
        let (transmit, receive) = (bits & flags::SEND != 0, bits & flags::RECV != 0);
        let selective = bits & flags::SELECTIVE_COMPLETION != 0;
        let (queue, source) = (cq.queue.clone(), cq.source.clone());
        on_provider!(Endpoint, &self.prov, p => p.bind(Binding::Cq { queue, source, transmit, receive, selective }))?;
        cq.attach(self);
        self.bound.lock().cqs.push(cq.clone());
        Ok(())
    }

    pub fn bind_eq(self: &Arc<Self>, eq: &Arc<Eq>, bits: u64) -> Result<()> {
        self.domain.owner.check()?;
        no_flags(bits)?;
        if !Arc::ptr_eq(eq.fabric(), &self.domain.fabric) {
            return Err(Error::invalid("eq: belongs to another fabric than the endpoint"));
        }
        on_provider!(Endpoint, &self.prov, p => p.bind(Binding::Eq(eq.events.clone())))?;
        eq.attach_ep(self);
        self.bound.lock().eq = Some(eq.clone());
        Ok(())
    }

    pub fn bind_cntr(self: &Arc<Self>, cntr: &Arc<Cntr>, bits: u64) -> Result<()> {
        self.domain.owner.check()?;
        let known = flags::SEND | flags::RECV | flags::READ | flags::WRITE | flags::REMOTE_WRITE;
        if bits == 0 || bits & !known != 0 {
            return Err(Error::new(errno::EBADFLAGS, format!("flags: {bits:#x}; any of GDRFAB_SEND, RECV, READ, WRITE, REMOTE_WRITE")));
        }
        if !Arc::ptr_eq(cntr.domain(), &self.domain) {
            return Err(Error::invalid("cntr: belongs to another domain than the endpoint"));
        }
        on_provider!(Endpoint, &self.prov, p => p.bind(Binding::Counter { counter: cntr.counter.clone(), flags: bits }))?;
        cntr.attach(self);
        self.bound.lock().cntrs.push(cntr.clone());
        Ok(())
    }

    pub fn enable(self: &Arc<Self>) -> Result<()> {
        self.domain.owner.check()?;
        if on_provider!(Endpoint, &self.prov, p => p.enable(self.tx_op_flags))? {
            self.short.store(self.owner.id, Ordering::Relaxed);
        }
        self.domain.watch(self);
        Ok(())
    }

    pub fn connect(&self, address: &str, data: &[u8]) -> Result<()> {
        self.domain.owner.check()?;
        self.check_data(data)?;
        on_provider!(Endpoint, &self.prov, p => p.connect(address, data))?;
        self.rouse();
        Ok(())
    }

    /// Wakes who sleeps on this endpoint: it has other sockets and times to watch than when they fell asleep.
    fn rouse(&self) {
        let bound = self.bound.lock();
        bound.cqs.iter().for_each(|cq| cq.queue.waiter.notify());
        bound.cntrs.iter().for_each(|c| c.counter.waiter.notify());
        if let Some(eq) = &bound.eq {
            eq.events.waiter.notify();
        }
        self.domain.drivers.notify();
    }

    /// Bytes of private data that connect and accept take.
    pub fn cm_data_size(&self) -> usize {
        on_provider!(Endpoint, &self.prov, p => p.cm_data_size())
    }

    fn check_data(&self, data: &[u8]) -> Result<()> {
        check_data(data, self.cm_data_size())
    }

    pub fn connect_addr(&self, address: &str) -> Result<()> {
        self.domain.owner.check()?;
        on_provider!(Endpoint, &self.prov, p => p.connect_addr(address))?;
        self.rouse();
        Ok(())
    }

    pub fn accept(&self, data: &[u8]) -> Result<()> {
        self.domain.owner.check()?;
        self.check_data(data)?;
        let taken = self.request.lock().take();
        let Some(request) = taken else {
            return Err(Error::new(errno::EOPBADSTATE, "ep: was not opened from a connection request (info->handle), or has answered it"));
        };
        match (*request, &self.prov) {
            (Request::Shm(request), prov::Endpoint::Shm(p)) => p.accept(request, data),
            (Request::Tcp(request), prov::Endpoint::Tcp(p)) => p.accept(request, data),
            (Request::Verbs(request), prov::Endpoint::Verbs(p)) => p.accept(request, data),
            _ => Err(Error::invalid("info->handle: a request of another provider")),
        }?;
        self.rouse();
        Ok(())
    }

    pub fn shutdown(&self, bits: u64) -> Result<()> {
        self.domain.owner.check()?;
        no_flags(bits)?;
        on_provider!(Endpoint, &self.prov, p => p.shutdown())
    }

    pub fn address(&self) -> Result<String> {
        self.domain.owner.check()?;
        on_provider!(Endpoint, &self.prov, p => p.address())
    }

    pub fn peer_address(&self) -> Result<String> {
        on_provider!(Endpoint, &self.prov, p => p.peer_address())
    }

    /// Ends the endpoint. Error entries of what was outstanding stay in the queue. `EBUSY`: it is over, but stays open for
    /// entries that cannot come yet.
    pub fn close(self: &Arc<Self>) -> Result<()> {
        self.domain.owner.check()?;
        drop(self.request.lock().take());
        on_provider!(Endpoint, &self.prov, p => p.close())?;
        self.domain.unwatch(self);
        let bound = std::mem::take(&mut *self.bound.lock());
        bound.cqs.iter().for_each(|cq| cq.detach(self));
        bound.cntrs.iter().for_each(|c| c.detach(self));
        if let Some(eq) = &bound.eq {
            eq.detach_ep(self);
            eq.events.forget(Arc::as_ptr(self) as usize);
        }
        self.domain.users.remove();
        Ok(())
    }

    /// Flags for calls that take none.
    #[inline]
    pub fn tx_op_flags(&self) -> u64 {
        self.tx_op_flags
    }

    /// As [`Endpoint::rma`] for the ordinary case: one piece on each side, without data. False: nothing was
    /// posted, and `rma` is to be called.
    #[inline(always)]
    pub fn rma_quick<const WRITE: bool>(&self, buf: usize, len: usize, addr: u64, key: u64, context: usize, flags: u64) -> Quick {
        if !self.owner.is_here() {
            return Quick::NotOrdinary;
        }
        match &self.prov {
            prov::Endpoint::Shm(p) => p.rma_quick::<WRITE>(buf, len, addr, key, context, flags),
            prov::Endpoint::Tcp(p) => p.rma_quick::<WRITE>(buf, len, addr, key, context, flags),
            prov::Endpoint::Verbs(_) => Quick::NotOrdinary,
        }
    }

    /// As [`Endpoint::rma_quick`] for the shortest operations of a domain without locks, in a leaf function. False:
    /// nothing was posted. `ENTRY`: a success gives one.
    #[inline(always)]
    pub fn rma_short<const WRITE: bool, const ENTRY: bool, const WORD: bool>(
        &self,
        buf: usize,
        len: usize,
        addr: u64,
        key: u64,
        context: usize,
    ) -> bool {
        match &self.prov {
            prov::Endpoint::Shm(p) if self.owner.is(self.short.load(Ordering::Relaxed)) => {
                // SAFETY: `short` is the process's number only from an `enable` on that found the promises kept.
                unsafe { p.rma_short::<WRITE, ENTRY, WORD>(buf, len, addr, key, context) }
            }
            prov::Endpoint::Shm(_) | prov::Endpoint::Tcp(_) | prov::Endpoint::Verbs(_) => false,
        }
    }

    /// Whether a device moves the bytes.
    #[inline(always)]
    pub fn is_nic(&self) -> bool {
        !matches!(self.prov, prov::Endpoint::Shm(_) | prov::Endpoint::Tcp(_))
    }

    /// Whether nothing but the operation itself can keep it from the shortest way without locks.
    #[inline(always)]
    pub fn is_short(&self) -> bool {
        self.owner.is(self.short.load(Ordering::Relaxed))
    }

    /// As [`Endpoint::rma_quick`] where a device moves the bytes, but for the posting, which is left to the caller.
    /// `None`: `rma` is to be called.
    ///
    /// # Safety
    /// `is_nic`; and `LOCKED`, or `is_short`.
    #[inline(always)]
    pub unsafe fn nic_quick<const WRITE: bool, const LOCKED: bool>(&self, one: One) -> Option<Armed<'_, LOCKED>> {
        match &self.prov {
            prov::Endpoint::Verbs(_) if LOCKED && !self.owner.is_here() => None,
            // SAFETY: handed on: `enable` has given `short` its number.
            prov::Endpoint::Verbs(p) => unsafe { p.rma_quick::<WRITE, LOCKED>(one) },
            // SAFETY: the caller has looked.
            _ => unsafe { std::hint::unreachable_unchecked() },
        }
    }

    /// As `nic_quick`, for a message.
    ///
    /// # Safety
    /// As for `nic_quick`.
    #[inline(always)]
    pub unsafe fn nic_send<const LOCKED: bool>(&self, one: One) -> Option<Armed<'_, LOCKED>> {
        match &self.prov {
            prov::Endpoint::Verbs(_) if LOCKED && !self.owner.is_here() => None,
            // SAFETY: as in `nic_quick`.
            prov::Endpoint::Verbs(p) => unsafe { p.send_quick::<LOCKED>(one) },
            // SAFETY: as in `nic_quick`.
            _ => unsafe { std::hint::unreachable_unchecked() },
        }
    }

    /// As `nic_send`, for a receive, which is posted. False: `recv` is to be called.
    ///
    /// # Safety
    /// As for `nic_quick`.
    #[inline(always)]
    pub unsafe fn nic_recv<const LOCKED: bool>(&self, buf: usize, len: usize, desc: u64, context: usize) -> bool {
        match &self.prov {
            prov::Endpoint::Verbs(_) if LOCKED && !self.owner.is_here() => false,
            // SAFETY: as in `nic_quick`.
            prov::Endpoint::Verbs(p) => unsafe { p.recv_quick::<LOCKED>(buf, len, desc, context) },
            // SAFETY: as in `nic_quick`.
            _ => unsafe { std::hint::unreachable_unchecked() },
        }
    }

    /// `descs`: of each local piece, or none.
    pub fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], common: &Common, descs: &[u64]) -> Result<()> {
        self.domain.owner.check()?;
        match &self.prov {
            prov::Endpoint::Shm(p) => p.rma(dir, local, remote, &one_kind(common, descs)?),
            prov::Endpoint::Tcp(p) => p.rma(dir, local, remote, &one_kind(common, descs)?),
            prov::Endpoint::Verbs(p) => p.rma(dir, local, remote, common, descs),
        }
    }

    /// As [`Endpoint::send`] for the shortest messages from host memory, in a leaf function, as `rma_short`.
    #[inline(always)]
    pub fn send_short<const ENTRY: bool>(&self, buf: usize, len: usize, context: usize) -> bool {
        match &self.prov {
            prov::Endpoint::Shm(p) if self.owner.is(self.short.load(Ordering::Relaxed)) => {
                // SAFETY: as in `rma_short`.
                unsafe { p.send_short::<ENTRY>(buf, len, context) }
            }
            _ => false,
        }
    }

    /// As `send_short` for some hundred bytes and more, with an entry.
    #[inline(always)]
    pub fn send_far(&self, buf: usize, len: usize, context: usize) -> bool {
        match &self.prov {
            prov::Endpoint::Shm(p) if self.owner.is(self.short.load(Ordering::Relaxed)) => {
                // SAFETY: as in `rma_short`.
                unsafe { p.send_far(buf, len, context) }
            }
            _ => false,
        }
    }

    /// As [`Endpoint::send`] for the ordinary case: one piece of host memory.
    #[inline(always)]
    pub fn send_quick(&self, one: &Iov, common: &Common) -> Quick {
        match &self.prov {
            prov::Endpoint::Shm(p) if self.owner.is_here() => p.send_quick(one, common),
            _ => Quick::NotOrdinary,
        }
    }

    #[inline]
    pub fn send(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        self.domain.owner.check()?;
        match &self.prov {
            prov::Endpoint::Shm(p) => p.send(local, &one_kind(common, descs)?),
            prov::Endpoint::Tcp(p) => p.send(local, &one_kind(common, descs)?),
            prov::Endpoint::Verbs(p) => p.send(local, common, descs),
        }
    }

    /// As [`Endpoint::recv`] for the ordinary case in a domain without locks, in a leaf function; false posts nothing.
    #[inline(always)]
    pub fn recv_short(&self, buf: usize, len: usize, context: usize) -> bool {
        match &self.prov {
            prov::Endpoint::Shm(p) if self.owner.is(self.short.load(Ordering::Relaxed)) => {
                // SAFETY: as in `rma_short`.
                unsafe { p.recv_short(buf, len, context) }
            }
            _ => false,
        }
    }

    /// As [`Endpoint::recv`] for the ordinary case: one piece of host memory; false posts nothing.
    #[inline(always)]
    pub fn recv_quick(&self, buf: usize, len: usize, context: usize) -> bool {
        match &self.prov {
            prov::Endpoint::Shm(p) if self.owner.is_here() => p.recv_quick(buf, len, context),
            _ => false,
        }
    }

    /// As [`Endpoint::progress`], which is to be called after `None`: see the provider's.
    #[inline(always)]
    pub(crate) fn arrive_short(&self, queue: &Queue, most: usize, each: impl FnMut(usize, &Completion)) -> Option<usize> {
        match &self.prov {
            prov::Endpoint::Shm(p) => p.arrive_short(queue, most, each),
            _ => None,
        }
    }

    #[inline]
    pub fn recv(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        self.domain.owner.check()?;
        match &self.prov {
            prov::Endpoint::Shm(p) => p.recv(local, &one_kind(common, descs)?),
            prov::Endpoint::Tcp(p) => p.recv(local, &one_kind(common, descs)?),
            prov::Endpoint::Verbs(p) => p.recv(local, common, descs),
        }
    }

    /// Flags of the inject calls.
    pub const INJECT: u64 = crate::prov::bind::INJECT_FLAGS;

    pub fn cancel(&self, context: usize) -> Result<()> {
        self.domain.owner.check()?;
        on_provider!(Endpoint, &self.prov, p => p.cancel(context))
    }

    #[inline]
    pub(crate) fn progress(&self, force: bool) {
        on_provider!(Endpoint, &self.prov, p => p.progress(force));
    }

    pub(crate) fn sleep(&self, poller: &Poller) -> Result<Option<Fences>> {
        on_provider!(Endpoint, &self.prov, p => p.sleep(poller))
    }

    pub(crate) fn may_sleep(&self) -> bool {
        on_provider!(Endpoint, &self.prov, p => p.may_sleep())
    }

    pub(crate) fn awake(&self, poller: Option<&Poller>) {
        on_provider!(Endpoint, &self.prov, p => p.awake(poller));
    }

    pub(crate) fn nap_ns(&self) -> u64 {
        on_provider!(Endpoint, &self.prov, p => p.nap_ns())
    }

    /// Changes when there is something else to watch than before.
    pub(crate) fn watched(&self) -> u64 {
        on_provider!(Endpoint, &self.prov, p => p.watched())
    }

    pub(crate) fn is_stalled(&self) -> bool {
        on_provider!(Endpoint, &self.prov, p => p.is_stalled())
    }

    pub fn deadline_ns(&self) -> u64 {
        on_provider!(Endpoint, &self.prov, p => p.options()).deadline_ns
    }

    pub fn set_deadline_ns(&self, ns: u64) {
        on_provider!(Endpoint, &self.prov, p => p.set_options(|o| o.deadline_ns = ns));
    }

    pub fn recv_deadline_ns(&self) -> u64 {
        on_provider!(Endpoint, &self.prov, p => p.options()).recv_deadline_ns
    }

    pub fn set_recv_deadline_ns(&self, ns: u64) {
        on_provider!(Endpoint, &self.prov, p => p.set_options(|o| o.recv_deadline_ns = ns));
    }

    pub fn connect_timeout_ns(&self) -> u64 {
        on_provider!(Endpoint, &self.prov, p => p.options()).connect_timeout_ns
    }

    pub fn set_connect_timeout_ns(&self, ns: u64) {
        on_provider!(Endpoint, &self.prov, p => p.set_options(|o| o.connect_timeout_ns = ns));
    }

    pub fn policy(&self) -> PathPolicy {
        on_provider!(Endpoint, &self.prov, p => p.options()).policy
    }

    pub fn set_policy(&self, require: Paths, forbid: Paths) {
        on_provider!(Endpoint, &self.prov, p => p.set_options(|o| o.policy = PathPolicy { require, forbid }));
    }

    pub fn coop(&self) -> bool {
        on_provider!(Endpoint, &self.prov, p => p.options()).coop
    }

    pub fn set_coop(&self, on: bool) -> Result<()> {
        match &self.prov {
            prov::Endpoint::Shm(p) => p.set_options(|o| o.coop = on),
            _ if !on => {}
            _ => {
                return Err(Error::new(
                    errno::EOPNOTSUPP,
                    "GDRFAB_OPT_COOP: only shm has copies that the target helps with, not tcp or verbs",
                ));
            }
        }
        Ok(())
    }

    pub fn stream(&self) -> u64 {
        on_provider!(Endpoint, &self.prov, p => p.options()).stream
    }

    pub fn set_stream(&self, stream: u64) -> Result<()> {
        match &self.prov {
            prov::Endpoint::Shm(p) => p.set_options(|o| o.stream = stream),
            prov::Endpoint::Tcp(p) => p.set_options(|o| o.stream = stream),
            prov::Endpoint::Verbs(_) if stream == 0 => {}
            prov::Endpoint::Verbs(_) => {
                let words = "GDRFAB_OPT_STREAM: an RDMA device (verbs) waits for no stream; synchronise with it before posting";
                return Err(Error::new(errno::EOPNOTSUPP, words));
            }
        }
        Ok(())
    }

    pub fn driver_calls(&self) -> bool {
        on_provider!(Endpoint, &self.prov, p => p.options()).driver_calls
    }

    pub fn set_driver_calls(&self, on: bool) -> Result<()> {
        match &self.prov {
            prov::Endpoint::Shm(p) => p.set_driver_calls(on),
            _ if on => Ok(()),
            _ => Err(Error::new(errno::EOPNOTSUPP, "optval: only shm copies device memory without calling its driver in this process")),
        }
    }

    pub fn effort(&self, what: Effort) -> Result<u32> {
        match &self.prov {
            prov::Endpoint::Shm(_) | prov::Endpoint::Tcp(_) => Err(no_effort()),
            prov::Endpoint::Verbs(p) => {
                let now = p.patience();
                Ok(u32::from(match what {
                    Effort::AckTimeout => now.timeout,
                    Effort::Retries => now.retries,
                    Effort::RnrRetries => now.rnr_retries,
                    Effort::MinRnrTimer => now.min_rnr_timer,
                }))
            }
        }
    }

    /// Takes the verbs' codes: up to 7 repeats, and times up to 31.
    pub fn set_effort(&self, what: Effort, value: u32) -> Result<()> {
        let most = if matches!(what, Effort::Retries | Effort::RnrRetries) { 7 } else { 31 };
        match (&self.prov, u8::try_from(value)) {
            (prov::Endpoint::Shm(_) | prov::Endpoint::Tcp(_), _) => Err(no_effort()),
            (prov::Endpoint::Verbs(p), Ok(value)) if value <= most => p.set_patience(|now| match what {
                Effort::AckTimeout => now.timeout = value,
                Effort::Retries => now.retries = value,
                Effort::RnrRetries => now.rnr_retries = value,
                Effort::MinRnrTimer => now.min_rnr_timer = value,
            }),
            _ => Err(Error::invalid(format!("optval: {value}, must be 0 to {most}"))),
        }
    }

    /// Which path operations take between memory of this side, host memory if `desc` is 0, and the peer's region.
    pub fn query(&self, key: u64, desc: u64) -> Result<PathAnswer> {
        on_provider!(Endpoint, &self.prov, p => p.report(key, desc))
    }

    pub fn stats(&self) -> Stats {
        on_provider!(Endpoint, &self.prov, p => p.stats())
    }
}

fn no_effort() -> Error {
    Error::fixed(errno::ENOPROTOOPT, "optname: an option of RDMA devices; this endpoint has none")
}

/// With shm and tcp the pieces of one operation lie in the first descriptor's region, or all in host memory.
#[inline]
fn one_kind(common: &Common, descs: &[u64]) -> Result<Common> {
    let first = descs.first().copied().unwrap_or(0);
    match descs.iter().position(|d| (d ^ first) & DEVICE_DESC != 0) {
        None => Ok(Common { desc: first, ..*common }),
        Some(i) => Err(Error::invalid(format!("desc[{i}]: host and device memory cannot be pieces of one operation"))),
    }
}

pub(crate) fn no_flags(bits: u64) -> Result<()> {
    if bits != 0 {
        return Err(Error::new(errno::EBADFLAGS, format!("flags: {bits:#x}, must be 0")));
    }
    Ok(())
}

pub(crate) fn check_data(data: &[u8], max: usize) -> Result<()> {
    if data.len() > max {
        return Err(Error::invalid(format!("paramlen: {} bytes of private data, cm_data_size is {max}", data.len())));
    }
    Ok(())
}
