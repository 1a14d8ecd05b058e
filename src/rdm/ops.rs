// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions by which programs post to an endpoint of this layer, in two tables. Small messages take the fast path
//! (`transfer/fast`), and the general functions do the rest.

use super::state::State;
use crate::error::errno;
use crate::guard::attempt;
use crate::prov::bind::INJECT_FLAGS;
use crate::prov::fast::{FastPath, FastRecv, fast_inject, fast_inject_tagged, fast_inject_tagged_data};
use crate::prov::fast::{fast_message, fast_recv_tagged, fast_tagged, fast_tagged_data};
use crate::prov::flags::REMOTE_CQ_DATA;
use crate::prov::general;
use crate::prov::op::One;
use crate::prov::ops::{Arrivals, ContextEntry, CqEntry, CqFormat, CqHead, DataEntry, EpHead, EpOps, MsgEntry, TaggedEntry};
use crate::prov::ops::{Inject, InjectTagged, InjectTaggedData, Message, RecvTagged, Tagged, TaggedData};
use crate::prov::queue::{Queue, Taken};
use crate::rdm::memory::lane_domains::Domain;
use crate::sync::serial::{Serial, Threading};
use std::ffi::c_void;
use std::net::SocketAddr;
use std::sync::Arc;

/// An endpoint of this layer: a connectionless endpoint, or a connected endpoint with tags.
pub struct Endpoint {
    pub domain: Arc<Domain>,
    /// The address at which the program wants the endpoint to listen, if the program chose one. Port 0 stands for any port.
    pub source: Option<SocketAddr>,
    pub state: Serial<State>,
}

/// The table for endpoints with locks, and the table for programs that promise that their calls do not overlap.
static LOCKED_OPS: EpOps = table::<true>();
static UNLOCKED_OPS: EpOps = table::<false>();

const fn table<const LOCKED: bool>() -> EpOps {
    let arrive = if LOCKED {
        None
    } else {
        Some([arrivals::<ContextEntry>(), arrivals::<MsgEntry>(), arrivals::<DataEntry>(), arrivals::<TaggedEntry>()])
    };
    EpOps {
        send: fast_message::<SendPath<LOCKED>>,
        inject: fast_inject::<SendPath<LOCKED>>,
        recv: fast_message::<RecvPath<LOCKED>>,
        tsend: fast_tagged::<SendPath<LOCKED>>,
        tinject: fast_inject_tagged::<SendPath<LOCKED>>,
        tsenddata: fast_tagged_data::<SendPath<LOCKED>>,
        tinjectdata: fast_inject_tagged_data::<SendPath<LOCKED>>,
        trecv: fast_recv_tagged::<RecvPath<LOCKED>>,
        arrive,
        ..general::GENERAL_ENTRIES
    }
}

pub fn choose(threading: Threading) -> &'static EpOps {
    match threading {
        Threading::Safe => &LOCKED_OPS,
        Threading::Promised(_) => &UNLOCKED_OPS,
    }
}

struct SendPath<const LOCKED: bool>;

impl<const LOCKED: bool> SendPath<LOCKED> {
    /// Sends a short message of one piece. `WORDS` and `how` are as in `State::send_fast`. `None` if nothing was done.
    ///
    /// # Safety
    /// As for `FastPath::post`.
    #[inline(always)]
    unsafe fn post_short<const WORDS: usize>(ep: &Endpoint, one: &One, how: u64) -> Option<isize> {
        // SAFETY: `choose` gave this table to endpoints whose state is reached with locks if and only if `LOCKED`.
        (one.is_on_host() && unsafe { ep.state.reach::<LOCKED>() }.send_fast::<WORDS>(one, how)).then_some(0)
    }
}

impl<const LOCKED: bool> FastPath<Message> for SendPath<LOCKED> {
    type Of = Endpoint;
    const NEXT: Message = general::send;
    #[inline(always)]
    unsafe fn post(head: &EpHead, ep: &Endpoint, one: One) -> Option<isize> {
        // SAFETY: the caller of `post` promises that the endpoint's table is this provider's.
        unsafe { Self::post_short::<1>(ep, &one, head.tx_op_flags()) }
    }
}

impl<const LOCKED: bool> FastPath<Inject> for SendPath<LOCKED> {
    type Of = Endpoint;
    const NEXT: Inject = general::inject;
    #[inline(always)]
    unsafe fn post(head: &EpHead, ep: &Endpoint, one: One) -> Option<isize> {
        // SAFETY: the caller of `post` promises that the endpoint's table is this provider's.
        unsafe { Self::post_short::<1>(ep, &one, INJECT_FLAGS | head.tx_op_flags()) }
    }
}

impl<const LOCKED: bool> FastPath<Tagged> for SendPath<LOCKED> {
    type Of = Endpoint;
    const NEXT: Tagged = general::tsend;
    #[inline(always)]
    unsafe fn post(head: &EpHead, ep: &Endpoint, one: One) -> Option<isize> {
        // SAFETY: the caller of `post` promises that the endpoint's table is this provider's.
        unsafe { Self::post_short::<2>(ep, &one, head.tx_op_flags()) }
    }
}

impl<const LOCKED: bool> FastPath<InjectTagged> for SendPath<LOCKED> {
    type Of = Endpoint;
    const NEXT: InjectTagged = general::tinject;
    #[inline(always)]
    unsafe fn post(head: &EpHead, ep: &Endpoint, one: One) -> Option<isize> {
        // SAFETY: the caller of `post` promises that the endpoint's table is this provider's.
        unsafe { Self::post_short::<2>(ep, &one, INJECT_FLAGS | head.tx_op_flags()) }
    }
}

impl<const LOCKED: bool> FastPath<TaggedData> for SendPath<LOCKED> {
    type Of = Endpoint;
    const NEXT: TaggedData = general::tsenddata;
    #[inline(always)]
    unsafe fn post(head: &EpHead, ep: &Endpoint, one: One) -> Option<isize> {
        // SAFETY: the caller of `post` promises that the endpoint's table is this provider's.
        unsafe { Self::post_short::<3>(ep, &one, REMOTE_CQ_DATA | head.tx_op_flags()) }
    }
}

impl<const LOCKED: bool> FastPath<InjectTaggedData> for SendPath<LOCKED> {
    type Of = Endpoint;
    const NEXT: InjectTaggedData = general::tinjectdata;
    #[inline(always)]
    unsafe fn post(head: &EpHead, ep: &Endpoint, one: One) -> Option<isize> {
        // SAFETY: the caller of `post` promises that the endpoint's table is this provider's.
        unsafe { Self::post_short::<3>(ep, &one, INJECT_FLAGS | REMOTE_CQ_DATA | head.tx_op_flags()) }
    }
}

struct RecvPath<const LOCKED: bool>;

impl<const LOCKED: bool> FastPath<Message> for RecvPath<LOCKED> {
    type Of = Endpoint;
    const NEXT: Message = general::recv;
    #[inline(always)]
    unsafe fn post(_: &EpHead, ep: &Endpoint, one: One) -> Option<isize> {
        // SAFETY: `choose` gave this table to endpoints whose state is reached with locks if and only if `LOCKED`.
        (one.is_on_host() && unsafe { ep.state.reach::<LOCKED>() }.recv_fast::<false>(&ep.domain, &one, 0)).then_some(0)
    }
}

impl<const LOCKED: bool> FastRecv for RecvPath<LOCKED> {
    type Of = Endpoint;
    const NEXT: RecvTagged = general::trecv;
    #[inline(always)]
    unsafe fn post(ep: &Endpoint, one: One, ignore: u64) -> Option<isize> {
        // SAFETY: `choose` gave this table to endpoints whose state is reached with locks if and only if `LOCKED`.
        (one.is_on_host() && unsafe { ep.state.reach::<LOCKED>() }.recv_fast::<true>(&ep.domain, &one, ignore)).then_some(0)
    }
}

const fn arrivals<E: CqEntry>() -> Arrivals {
    Arrivals { sole: read_sole::<E>, turn: decline_turn }
}

/// `gdrfab_cq_read` of an empty queue that has several endpoints. Does nothing, and the result says so: the caller makes
/// progress instead, and entries of messages go through the queue.
///
/// # Safety
/// As for [`crate::prov::ops::Arrive`].
unsafe fn decline_turn(_: *const EpHead, _: &Queue, _: *mut c_void, _: usize) -> isize {
    -1
}

/// `gdrfab_cq_read` of an empty queue that has no other endpoint: one turn of progress, in which entries of messages go
/// straight into the program's array.
///
/// # Safety
/// As for [`crate::prov::ops::ReadSole`]: queue and endpoint are open, the array holds `count` entries, and nothing has
/// locks.
unsafe extern "C" fn read_sole<E: CqEntry>(cq: *const CqHead, buf: *mut c_void, count: usize, ep: *const EpHead) -> isize {
    // SAFETY: the caller promises that queue and endpoint are open and without locks, and that `buf` holds `count` entries.
    // `Endpoint::dispatch` set the head's pointer to this endpoint.
    unsafe {
        let (head, own) = (&*cq, &*(*ep).of().cast::<Endpoint>());
        let read = || {
            let mut s = own.state.reach::<false>();
            s.reader.begin(head.queue, E::FORMAT, buf, count);
            s.turn(&own.domain, false);
            match s.reader.end() {
                0 => {}
                n => return Some(n as isize),
            }
            let mut entries = (*head.queue).reach::<false>();
            let taken = match const { matches!(E::FORMAT, CqFormat::Tagged) } {
                true => entries.take_from(count, |i, c, from| E::put_from(buf, i, c, from)),
                false => entries.take(count, |i, c| E::put(buf, i, c)),
            };
            match taken {
                Taken::Some(n) => Some(n as isize),
                Taken::Empty => {
                    std::hint::spin_loop();
                    Some(-errno::EAGAIN as isize)
                }
                Taken::ErrorFirst => None,
            }
        };
        match attempt(read) {
            Some(n) => n,
            None => (head.rest.queue)(cq, buf, count),
        }
    }
}
