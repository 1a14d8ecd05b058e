// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Endpoints, connected and connectionless: opening, binding, connecting, options, reports, and the posting calls that have
//! no entry in the table of operations. Each call checks states and arguments that no provider need know, and goes on to the
//! provider.

use super::av::Av;
use super::cntr::Cntr;
use super::cq::Cq;
use super::domain::Domain;
use super::drive::EpRef;
use super::eq::Eq;
use super::info::{EP_RDM, Info};
use super::users::ObjectKind;
use super::{Context, check_data, no_flags, requests};
use crate::error::{Code, Error, Result, errno};
use crate::mr::{PathPolicy, Paths};
use crate::prov::atomic::{Atomic, AtomicOp};
use crate::prov::av::Name;
use crate::prov::bind::{Binding, Coop, Effort};
use crate::prov::general::EndpointCore;
use crate::prov::list::List;
use crate::prov::op::{Common, Dir, Iov, RmaIov};
use crate::prov::ops::{EpHead, OpFlags};
use crate::prov::{self, Request, flags};
use parking_lot::Mutex;
use std::sync::Arc;

pub use crate::prov::report::{PathReport as PathAnswer, PathStats, RailReport, Stats};

/// The objects that are bound to an endpoint, for detaching when it closes.
#[derive(Default)]
struct Bound {
    cqs: Vec<Arc<Cq>>,
    eq: Option<Arc<Eq>>,
    cntrs: Vec<Arc<Cntr>>,
    av: Option<Arc<Av>>,
}

/// An endpoint. The object begins with its core, and the core with the head, by which posting calls find the table of
/// operations.
#[repr(C)]
pub struct Endpoint {
    core: EndpointCore,
    pub context: Context,
    domain: Arc<Domain>,
    max_msg_size: usize,
    request: Mutex<Option<Box<dyn Request>>>,
    bound: Mutex<Bound>,
}

impl Endpoint {
    /// Opens an endpoint. If the info carries a connection request, the endpoint is the one that accepts it.
    pub fn open(domain: &Arc<Domain>, info: &Info, context: usize) -> Result<Arc<Endpoint>> {
        domain.owner.check()?;
        super::info::check(info)?;
        domain.origin.check(info)?;
        if domain.connectionless != (info.ep_type == EP_RDM) {
            return Err(Error::invalid(format!("info->ep_type: {}, but the domain was opened with another type", info.ep_type)));
        }
        if domain.matched != info.is_matched() {
            let words = "info->caps: GDRFAB_TAGGED and GDRFAB_MULTI_RECV must be the same for endpoint and domain";
            return Err(Error::fixed(errno::EINVAL, words));
        }
        let request = match info.request {
            None => None,
            Some(id) => Some(requests::take(id).ok_or_else(|| {
                Error::invalid("info->handle: unknown connection request: answered already, or its passive endpoint was closed")
            })?),
        };
        let ep = Arc::new(Endpoint {
            core: EndpointCore::new(
                domain.prov.clone().open_endpoint(info, context)?,
                domain.owner,
                OpFlags { tx: info.tx_op_flags, rx: info.rx_op_flags },
                info.tx_iov_limit.min(info.rma_iov_limit),
            )?
            .checks(domain.described.clone()),
            max_msg_size: info.max_msg_size,
            context: Context::default(),
            domain: domain.clone(),
            request: Mutex::new(request),
            bound: Mutex::new(Bound::default()),
        });
        ep.core.bind(Binding::Drivers(domain.drivers.clone()))?;
        if info.comp_order != 0 {
            ep.core.bind(Binding::Order)?;
        }
        domain.users.add(ObjectKind::Endpoint);
        ep.prov().set_object(Arc::as_ptr(&ep) as usize);
        Ok(ep)
    }

    /// The beginning of the endpoint, with its table of operations.
    pub fn head(&self) -> &EpHead {
        self.core.head()
    }

    #[inline]
    fn prov(&self) -> &dyn prov::Endpoint {
        self.core.prov()
    }

    /// A reference for the queues and counters that drive this endpoint.
    fn shared(self: &Arc<Self>) -> EpRef {
        EpRef::new(self, |ep| &ep.core)
    }

    pub fn bind_cq(self: &Arc<Self>, cq: &Arc<Cq>, bits: u64) -> Result<()> {
        self.domain.owner.check()?;
        let known = flags::SEND | flags::RECV | flags::SELECTIVE_COMPLETION;
        if bits & !known != 0 || bits & (flags::SEND | flags::RECV) == 0 {
            return Err(Error::new(
                errno::EBADFLAGS,
                format!("flags: {bits:#x}, must be GDRFAB_TRANSMIT, GDRFAB_RECV or both, perhaps with GDRFAB_SELECTIVE_COMPLETION"),
            ));
        }
        if !Arc::ptr_eq(cq.domain(), &self.domain) {
            return Err(Error::invalid("cq: belongs to another domain than the endpoint"));
        }
        let (transmit, receive) = (bits & flags::SEND != 0, bits & flags::RECV != 0);
        let selective = bits & flags::SELECTIVE_COMPLETION != 0;
        let (queue, source) = (cq.queue.clone(), cq.source.clone());
        self.core.bind(Binding::Cq { queue, source, transmit, receive, selective })?;
        cq.attach(&self.shared());
        self.bound.lock().cqs.push(cq.clone());
        Ok(())
    }

    pub fn bind_eq(self: &Arc<Self>, eq: &Arc<Eq>, bits: u64) -> Result<()> {
        self.domain.owner.check()?;
        no_flags(bits)?;
        if !Arc::ptr_eq(eq.fabric(), &self.domain.fabric) {
            return Err(Error::invalid("eq: belongs to another fabric than the endpoint"));
        }
        self.core.bind(Binding::Eq(eq.events.clone()))?;
        eq.attach_ep(&self.shared());
        self.bound.lock().eq = Some(eq.clone());
        Ok(())
    }

    pub fn bind_cntr(self: &Arc<Self>, cntr: &Arc<Cntr>, bits: u64) -> Result<()> {
        self.domain.owner.check()?;
        let known = flags::SEND | flags::RECV | flags::READ | flags::WRITE | flags::REMOTE_WRITE;
        if bits & !known == flags::REMOTE_READ {
            let words = "flags: GDRFAB_REMOTE_READ: peers' reads cannot be counted, because they can bypass this side's CPU";
            return Err(Error::fixed(errno::EOPNOTSUPP, words));
        }
        if bits == 0 || bits & !known != 0 {
            return Err(Error::new(
                errno::EBADFLAGS,
                format!("flags: {bits:#x}, must be one or more of GDRFAB_SEND, RECV, READ, WRITE, REMOTE_WRITE"),
            ));
        }
        if !Arc::ptr_eq(cntr.domain(), &self.domain) {
            return Err(Error::invalid("cntr: belongs to another domain than the endpoint"));
        }
        self.core.bind(Binding::Counter { counter: cntr.counter.clone(), flags: bits })?;
        cntr.attach(&self.shared());
        self.bound.lock().cntrs.push(cntr.clone());
        Ok(())
    }

    pub fn bind_av(self: &Arc<Self>, av: &Arc<Av>, bits: u64) -> Result<()> {
        self.domain.owner.check()?;
        no_flags(bits)?;
        if !Arc::ptr_eq(av.domain(), &self.domain) {
            return Err(Error::invalid("av: belongs to another domain than the endpoint"));
        }
        self.core.bind(Binding::Av(av.names.clone()))?;
        av.attach();
        self.bound.lock().av = Some(av.clone());
        Ok(())
    }

    pub fn enable(self: &Arc<Self>) -> Result<()> {
        self.domain.owner.check()?;
        self.core.enable()?;
        self.domain.watch(&self.shared());
        Ok(())
    }

    pub fn connect(&self, address: &str, data: &[u8]) -> Result<()> {
        self.domain.owner.check()?;
        self.check_data(data)?;
        self.prov().connect(address, data)?;
        self.wake_sleepers();
        Ok(())
    }

    /// Wakes the threads that sleep on this endpoint, because its sockets and deadlines have changed since they fell
    /// asleep.
    fn wake_sleepers(&self) {
        let bound = self.bound.lock();
        bound.cqs.iter().for_each(|cq| cq.queue.waiter.notify());
        bound.cntrs.iter().for_each(|c| c.counter.waiter.notify());
        if let Some(eq) = &bound.eq {
            eq.events.waiter.notify();
        }
        self.domain.drivers.notify();
    }

    /// The most bytes of private data that connect and accept take.
    pub fn cm_data_size(&self) -> usize {
        self.prov().cm_data_size()
    }

    fn check_data(&self, data: &[u8]) -> Result<()> {
        check_data(data, self.cm_data_size())
    }

    pub fn connect_addr(&self, address: &str) -> Result<()> {
        self.domain.owner.check()?;
        self.prov().connect_addr(address)?;
        self.wake_sleepers();
        Ok(())
    }

    pub fn accept(&self, data: &[u8]) -> Result<()> {
        self.domain.owner.check()?;
        self.check_data(data)?;
        let taken = self.request.lock().take();
        let Some(request) = taken else {
            return Err(Error::new(
                errno::EOPBADSTATE,
                "ep: not opened from a connection request (info->handle), or the request was answered already",
            ));
        };
        self.prov().accept(request, data).map_err(|e| match e.is_of_gone_peer() {
            true => Error::coded(errno::ECONNRESET, Code::PeerGone, format!("the peer is gone: {}", e.words)),
            false => e,
        })?;
        self.wake_sleepers();
        Ok(())
    }

    pub fn shutdown(&self, bits: u64) -> Result<()> {
        self.domain.owner.check()?;
        no_flags(bits)?;
        self.prov().shutdown()
    }

    pub fn address(&self) -> Result<String> {
        self.domain.owner.check()?;
        self.prov().address()
    }

    /// The name by which peers reach the endpoint: of a connectionless endpoint its binary name, of a connected one its
    /// address with a NUL.
    pub fn name(&self) -> Result<Vec<u8>> {
        let address = self.address()?;
        match self.domain.connectionless {
            true => Ok(address.parse::<Name>()?.encode().into()),
            false => Ok([address.as_bytes(), &[0]].concat()),
        }
    }

    pub fn peer_address(&self) -> Result<String> {
        self.prov().peer_address()
    }

    /// Closes the endpoint. The error entries of its outstanding operations stay in the queue. `EBUSY`: the connection is
    /// over, but the endpoint stays open for completions that cannot come yet.
    pub fn close(self: &Arc<Self>) -> Result<()> {
        self.domain.owner.check()?;
        drop(self.request.lock().take());
        self.core.close()?;
        let shared = self.shared();
        self.domain.unwatch(&shared);
        let bound = std::mem::take(&mut *self.bound.lock());
        bound.cqs.iter().for_each(|cq| cq.detach(&shared));
        bound.cntrs.iter().for_each(|c| c.detach(&shared));
        if let Some(eq) = &bound.eq {
            eq.detach_ep(&shared);
            eq.events.forget(Arc::as_ptr(self) as usize);
        }
        if let Some(av) = &bound.av {
            av.detach();
        }
        self.domain.users.remove(ObjectKind::Endpoint);
        Ok(())
    }

    /// The flags of transmit calls that have no parameter for flags.
    #[inline]
    pub fn tx_op_flags(&self) -> u64 {
        self.head().tx_op_flags()
    }

    /// The flags of receive calls that have no parameter for flags.
    #[inline]
    pub fn rx_op_flags(&self) -> u64 {
        self.head().op_flags().rx
    }

    #[inline]
    fn check_local(&self, local: &[Iov], descs: &[u64]) -> Result<()> {
        self.domain.owner.check()?;
        self.core.described().map_or(Ok(()), |described| described.check(local, descs))
    }

    /// Posts an RMA operation. `descs` has a descriptor for each local piece, or is empty.
    pub fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], common: &Common, descs: &[u64]) -> Result<()> {
        self.check_local(local, descs)?;
        self.prov().rma(dir, local, remote, common, descs)
    }

    /// The largest number of elements of such an atomic operation. An error: the endpoint has no such operation.
    pub fn atomic_valid(&self, what: Atomic) -> Result<usize> {
        self.prov().atomic_valid(what)
    }

    #[inline]
    pub fn atomic(&self, op: &AtomicOp, common: &Common, descs: &[u64]) -> Result<()> {
        self.domain.owner.check()?;
        if let Some(described) = self.core.described() {
            described.check_atomic(op, descs)?;
        }
        op.check(common, descs)?;
        self.prov().atomic(op, common)
    }

    /// The largest message, and the largest block of a list.
    pub fn max_msg_size(&self) -> usize {
        self.max_msg_size
    }

    pub fn list(&self, dir: Dir, list: &Arc<List>, common: &Common) -> Result<()> {
        self.domain.owner.check()?;
        self.core.described().map_or(Ok(()), |described| described.check_list(list))?;
        self.core.list(dir, list.clone(), common)
    }

    pub fn send(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        self.check_local(local, descs)?;
        self.prov().send(local, common, descs)
    }

    pub fn recv(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        self.check_local(local, descs)?;
        if common.flags & flags::MULTI_RECV != 0 && !self.domain.matched {
            return Err(Error::fixed(errno::EOPNOTSUPP, "flags: GDRFAB_MULTI_RECV needs an endpoint opened with that capability"));
        }
        self.prov().recv(local, common, descs)
    }

    pub fn tsend(&self, local: &[Iov], common: &Common, descs: &[u64], tag: u64) -> Result<()> {
        self.check_local(local, descs)?;
        self.prov().tsend(local, common, descs, tag)
    }

    pub fn trecv(&self, local: &[Iov], common: &Common, descs: &[u64], tag: u64, ignore: u64) -> Result<()> {
        self.check_local(local, descs)?;
        self.prov().trecv(local, common, descs, tag, ignore)
    }

    /// The flags of inject calls.
    pub const INJECT: u64 = crate::prov::bind::INJECT_FLAGS;

    pub fn cancel(&self, context: usize) -> Result<()> {
        self.domain.owner.check()?;
        self.core.cancel(context)
    }

    pub fn deadline_ns(&self) -> u64 {
        self.prov().options().deadline_ns
    }

    pub fn set_deadline_ns(&self, ns: u64) {
        self.prov().set_options(&mut |o| o.deadline_ns = ns);
    }

    pub fn recv_deadline_ns(&self) -> u64 {
        self.prov().options().recv_deadline_ns
    }

    pub fn set_recv_deadline_ns(&self, ns: u64) {
        self.prov().set_options(&mut |o| o.recv_deadline_ns = ns);
    }

    pub fn connect_timeout_ns(&self) -> u64 {
        self.prov().options().connect_timeout_ns
    }

    pub fn set_connect_timeout_ns(&self, ns: u64) {
        self.prov().set_options(&mut |o| o.connect_timeout_ns = ns);
    }

    /// True if only peers that know the endpoint's whole name may connect.
    pub fn whole_name(&self) -> Result<bool> {
        self.is_called()?;
        Ok(self.prov().options().whole_name)
    }

    pub fn set_whole_name(&self, on: bool) -> Result<()> {
        self.is_called()?;
        self.prov().set_options(&mut |o| o.whole_name = on);
        Ok(())
    }

    fn is_called(&self) -> Result<()> {
        match self.domain.connectionless {
            true => Ok(()),
            false => Err(Error::fixed(errno::ENOPROTOOPT, "optname: only connectionless endpoints have names")),
        }
    }

    /// The number of free bytes below which a receive of several messages ends.
    pub fn min_multi_recv(&self) -> Result<usize> {
        self.takes_several()?;
        Ok(self.prov().options().min_multi_recv)
    }

    pub fn set_min_multi_recv(&self, bytes: usize) -> Result<()> {
        self.takes_several()?;
        self.prov().set_options(&mut |o| o.min_multi_recv = bytes);
        Ok(())
    }

    fn takes_several(&self) -> Result<()> {
        match self.domain.matched {
            true => Ok(()),
            false => {
                Err(Error::fixed(errno::ENOPROTOOPT, "optname: only an endpoint with GDRFAB_MULTI_RECV receives several messages at once"))
            }
        }
    }

    pub fn policy(&self) -> PathPolicy {
        self.prov().options().policy
    }

    pub fn set_policy(&self, require: Paths, forbid: Paths) {
        self.prov().set_options(&mut |o| o.policy = PathPolicy { require, forbid });
    }

    pub fn coop(&self) -> Coop {
        self.prov().options().coop
    }

    pub fn set_coop(&self, coop: Coop) -> Result<()> {
        self.prov().set_coop(coop)
    }

    pub fn stream(&self) -> u64 {
        self.prov().options().stream
    }

    pub fn set_stream(&self, stream: u64) -> Result<()> {
        self.prov().set_stream(stream)
    }

    pub fn driver_calls(&self) -> bool {
        self.prov().options().driver_calls
    }

    pub fn set_driver_calls(&self, on: bool) -> Result<()> {
        self.prov().set_driver_calls(on)
    }

    /// The number of TCP connections for long transfers; 1: no further ones, 0: automatic.
    pub fn tcp_streams(&self) -> Result<u32> {
        let (usual, _) = self.streams()?;
        Ok(self.prov().options().tcp_streams.unwrap_or(usual))
    }

    pub fn set_tcp_streams(&self, count: u32) -> Result<()> {
        match self.streams()? {
            (_, most) if count > most => Err(Error::invalid(format!("optval: {count}, must be 0 to {most}"))),
            _ => {
                self.prov().set_options(&mut |o| o.tcp_streams = Some(count));
                Ok(())
            }
        }
    }

    /// The addresses of the endpoint's rails, separated by commas.
    pub fn rails(&self) -> Result<String> {
        let usual = self.domain.prov.rails(None)?;
        Ok(self.prov().options().rails.unwrap_or(usual).words())
    }

    pub fn set_rails(&self, words: &str) -> Result<()> {
        let rails = self.domain.prov.rails(Some(words))?;
        self.prov().set_rails(rails)
    }

    fn streams(&self) -> Result<(u32, u32)> {
        let none = || Error::fixed(errno::ENOPROTOOPT, "optname: only an endpoint that reaches peers over tcp has streams");
        self.domain.prov.tcp_streams().ok_or_else(none)
    }

    pub fn effort(&self, what: Effort) -> Result<u32> {
        self.prov().effort(what)
    }

    pub fn set_effort(&self, what: Effort, value: u32) -> Result<()> {
        self.prov().set_effort(what, value)
    }

    /// The path of operations between local memory, which is host memory if `desc` is 0, and the peer's region.
    pub fn query(&self, peer: u64, key: u64, desc: u64) -> Result<PathAnswer> {
        self.prov().report(peer, key, desc)
    }

    pub fn rail_reports(&self, peer: u64) -> Result<Vec<RailReport>> {
        self.prov().rail_reports(peer)
    }

    pub fn stats(&self) -> Stats {
        self.prov().stats()
    }
}
