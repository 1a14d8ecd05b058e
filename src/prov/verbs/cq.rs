// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A completion queue of the device, which several endpoints share. Each completion is handed to the endpoint that
//! posted the operation, and that endpoint fills the caller's queue of entries.
//!
//! Lock order: a `Cq` before an endpoint's state.

use super::shared::Shared;
use crate::error::{Error, Result, errno};
use crate::prov::queue::Queue;
use crate::prov::verbs::device::context::Context;
use crate::prov::verbs::device::object::RawCq;
use crate::prov::verbs::queue::tag::Tag;
use crate::prov::verbs::sys::abi::{ibv_cq, ibv_wc};
use crate::sync::serial::{Rank, Serial, Threading};
use crate::sys::epoll::Poller;
use std::ffi::c_int;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most completions that are taken from the device at once.
pub const BATCH: usize = 16;
/// A queue has at least this many entries, so that endpoints of the usual sizes fit without resizing, which not every device can do.
const ROOM: usize = 4096;

/// The share of an endpoint in the queue. An endpoint that sends and receives with the same queue has two shares.
pub struct Member {
    pub tag: Tag,
    pub ep: Option<Arc<Shared>>,
    /// Completions that the member can have outstanding.
    charge: usize,
}

pub struct Inner {
    pub wcs: Box<[ibv_wc; BATCH]>,
    pub members: Vec<Member>,
    charged: usize,
    generation: u16,
    /// The endpoint of the last completion. The next completion is most probably for the same endpoint.
    pub last: Option<NonNull<Shared>>,
    pub poll: PollCq,
}

// SAFETY: `last` points to an endpoint in `members`, which may go to another thread as well.
unsafe impl Send for Inner {}

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

/// The poll function for a device that has none.
unsafe extern "C" fn no_poll(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    -1
}

/// The kind of work requests that complete in a queue.
#[derive(Clone, Copy)]
enum CqOwner {
    /// The caller's operations, and lanes.
    Caller,
    /// The service queue pairs.
    Service,
    /// The rail of this number.
    Rail(usize),
}

pub struct Cq {
    /// The caller's queue of entries; `None` for an endpoint that has counters only.
    pub queue: Option<Arc<Queue>>,
    of: CqOwner,
    pub inner: Serial<Inner>,
    sleepers: AtomicUsize,
    /// Declared after `inner`, so that the queue pairs of the members are destroyed before the queue.
    pub raw: RawCq,
}

impl Cq {
    pub fn open(context: &Arc<Context>, threading: Threading, size: usize, queue: &Arc<Queue>) -> Result<Arc<Cq>> {
        Self::make(context, threading, size, Some(queue.clone()), CqOwner::Caller)
    }

    /// A queue for an endpoint for which the caller has bound none.
    pub fn unbound(context: &Arc<Context>, threading: Threading) -> Result<Arc<Cq>> {
        Self::make(context, threading, 0, None, CqOwner::Caller)
    }

    /// The queue of a domain's service queue pairs.
    pub fn service(context: &Arc<Context>, threading: Threading) -> Result<Arc<Cq>> {
        Self::make(context, threading, 0, None, CqOwner::Service)
    }

    /// The queue of the domain's further rail `number`.
    pub fn rail(context: &Arc<Context>, threading: Threading, number: usize) -> Result<Arc<Cq>> {
        Self::make(context, threading, 0, None, CqOwner::Rail(number))
    }

    fn make(context: &Arc<Context>, threading: Threading, size: usize, queue: Option<Arc<Queue>>, of: CqOwner) -> Result<Arc<Cq>> {
        let most = context.attr.max_cqe.max(1) as usize;
        let raw = RawCq::new(context, size.max(ROOM).min(most))?;
        // SAFETY: integers, for all of which zero is a valid value.
        let wcs = unsafe { Box::new(std::mem::zeroed()) };
        // SAFETY: the queue was just made, with a context that is open.
        let poll = unsafe { (*(*raw.raw()).context).ops.poll_cq }.unwrap_or(no_poll);
        let inner = Inner { wcs, members: Vec::new(), charged: 0, generation: 0, last: None, poll };
        Ok(Arc::new(Cq { raw, queue, of, inner: Serial::new(threading, Rank::DeviceQueue, inner), sleepers: AtomicUsize::new(0) }))
    }

    /// Adds an endpoint that can have `charge` completions outstanding, and grows the queue so that it cannot overrun.
    pub fn add(&self, ep: &Arc<Shared>, charge: usize) -> Result<Tag> {
        let mut inner = self.inner.lock();
        let needed = inner.charged + charge;
        if needed > self.raw.capacity() {
            self.raw.resize(needed.next_power_of_two()).or_else(|_| self.raw.resize(needed)).map_err(|e| {
                Error::new(
                    errno::ENOSPC,
                    format!(
                        "cq: has room for {} completions, and {needed} can be outstanding; open it with a larger size ({e})",
                        self.raw.capacity()
                    ),
                )
            })?;
        }
        let place = match inner.members.iter().position(|m| m.ep.is_none()) {
            Some(free) => free,
            // The last index stays unused, so that not every 64-bit number is a work request's (`template::NO_REQUEST`).
            None if inner.members.len() < 0xffff => {
                inner.members.push(Member { tag: Tag::default(), ep: None, charge: 0 });
                inner.members.len() - 1
            }
            None => return Err(Error::fixed(errno::ENOSPC, "cq: too many endpoints are bound to it")),
        };
        inner.generation = inner.generation.wrapping_add(1);
        let tag = Tag::new(place, inner.generation);
        inner.members[place] = Member { tag, ep: Some(ep.clone()), charge };
        inner.charged = needed;
        Ok(tag)
    }

    /// Adds an endpoint that both sends and receives with this queue.
    pub fn add_both(&self, ep: &Arc<Shared>, tx: usize, rx: usize) -> Result<[Tag; 2]> {
        Ok([self.add(ep, tx)?, self.add(ep, rx).inspect_err(|_| self.remove(ep))?])
    }

    /// Removes an endpoint; its remaining completions are dropped.
    pub fn remove(&self, ep: &Arc<Shared>) {
        let mut inner = self.inner.lock();
        inner.last = None;
        let Inner { members, charged, .. } = &mut *inner;
        let mut gone = Vec::new();
        for m in members.iter_mut().filter(|m| m.ep.as_ref().is_some_and(|e| Arc::ptr_eq(e, ep))) {
            *charged -= m.charge;
            gone.extend(m.ep.take());
        }
        drop(inner);
    }

    /// Takes completions and hands them to their endpoints. Without `force`, this function does nothing while another
    /// thread polls.
    pub fn poll(&self, force: bool) {
        if force {
            self.poll_locked(&mut self.inner.lock());
        } else if let Some(mut inner) = self.inner.try_lock() {
            self.poll_locked(&mut inner);
        }
    }

    fn poll_locked(&self, inner: &mut Inner) {
        let Inner { wcs, members, .. } = inner;
        loop {
            let most = self.queue.as_ref().map_or(BATCH, |q| q.room_for_arrivals()).min(BATCH);
            if most == 0 {
                return;
            }
            let n = match self.raw.poll(&mut wcs[..most]) {
                Ok(n) => n,
                Err(e) => {
                    crate::log!(Error, "{e}");
                    return;
                }
            };
            self.hand_over(&wcs[..n], members);
            if n < most {
                return;
            }
        }
    }

    /// Hands completions to their endpoints.
    pub fn hand_over(&self, wcs: &[ibv_wc], members: &[Member]) {
        for wc in wcs {
            let member = members.get(Tag::member(wc.wr_id)).filter(|m| m.tag.is_of(wc.wr_id));
            if let Some(ep) = member.and_then(|m| m.ep.as_ref()) {
                let (recv, seq) = (wc.wr_id & Tag::RECV != 0, wc.wr_id as u32);
                match self.of {
                    CqOwner::Caller => ep.complete(wc, recv, seq),
                    CqOwner::Service => ep.complete_service(wc, recv, seq),
                    CqOwner::Rail(number) => ep.complete_rail(number, wc, recv, seq),
                }
            }
        }
    }

    /// Adds the queue to `poller` and arms it; the caller polls next.
    pub fn sleep(&self, poller: &Poller) -> Result<()> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        poller.add(self.raw.channel.as_fd())?;
        self.raw.arm()
    }

    /// Undoes one `sleep`. The event that woke this thread may have been the only one for another sleeper, so the queue is armed again.
    pub fn end_sleep(&self) {
        let others = self.sleepers.fetch_sub(1, Ordering::Relaxed) > 1;
        self.raw.drain_events();
        if others && let Err(e) = self.raw.arm() {
            crate::log!(Warn, "{e}");
        }
    }
}
