// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits until no peer copies in a region: the second half of closing the region, after `mr_close` has closed the gate
//! and run the barrier (`sync::gate`). `initiators` finds the peers that copied at that time. The domain keeps that
//! list between attempts to close the region, because any later copy of these peers is in another region.

use super::link::Link;
use crate::error::{Error, Result, errno};
use crate::prov::shm::wire::layout::FLIGHTS;
use crate::sync::gate;
use crate::sync::primitive::Ordering;
use crate::sys::time::now_ns;
use std::sync::Arc;

/// Peers that may be inside a copy of the region that began before the region's gate was closed, each with that copy.
pub type Initiators = Vec<(Arc<Link>, OngoingCopy)>;

/// The peers that may be inside region `index`. The caller has closed the region's gate and run the barrier.
pub fn initiators(links: &[Arc<Link>], index: u32) -> Initiators {
    // The mark of a short copy names no region, so the copy may be in any. The marks of long copies and the words of
    // device copies name their region.
    let mut inside = Initiators::new();
    for l in links.iter().filter(|l| used(l, index)) {
        inside.extend(gate::inside(l.peer.busy(), index).map(|mark| (l.clone(), OngoingCopy::Copy(mark))));
        for k in 0..FLIGHTS {
            let word = l.peer.flight(k).load(Ordering::Acquire);
            if word as u32 == index + 1 {
                inside.push((l.clone(), OngoingCopy::Flight(k, word)));
            }
        }
    }
    inside
}

/// Waits up to `limit_ms` until no peer of the list is inside its copy; with limit 0, looks once. `Err` names a peer
/// that still is.
pub fn wait_for(inside: &mut Initiators, limit_ms: u64) -> Result<()> {
    let deadline = now_ns() + limit_ms * 1_000_000;
    let mut rounds = 0u32;
    loop {
        inside.retain(|(l, inside)| !inside.is_over(l));
        rounds += 1;
        let late = limit_ms == 0 || now_ns() > deadline;
        if late || rounds.is_multiple_of(1024) {
            inside.retain(|(l, inside)| !inside.is_abandoned(l));
        }
        let Some((stuck, _)) = inside.first() else { return Ok(()) };
        if late {
            let words = format!(
                "{} is still copying from or to this region{}; no new copy can start, call gdrfab_mr_close() again",
                stuck.who(),
                if stuck.is_torn() { " over a connection that has ended" } else { "" }
            );
            return Err(Error::new(errno::EBUSY, words));
        }
        match rounds.is_multiple_of(1024) {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }
}

/// A copy that a peer had begun.
pub enum OngoingCopy {
    /// A copy by the peer's CPU, with the value of the peer's busy mark.
    Copy(u64),
    /// A device copy, with the index and the value of its flight word.
    Flight(usize, u64),
}

impl OngoingCopy {
    /// True if the peer has changed its word, which it does only after the copy.
    fn is_over(&self, link: &Link) -> bool {
        match *self {
            OngoingCopy::Copy(mark) => gate::left(link.peer.busy(), mark),
            OngoingCopy::Flight(k, word) => link.peer.flight(k).load(Ordering::Acquire) != word,
        }
    }

    /// True if no process is left that could go on with the copy.
    fn is_abandoned(&self, link: &Link) -> bool {
        match self {
            OngoingCopy::Copy(_) => link.peer_left(),
            OngoingCopy::Flight(..) => link.is_quiet(),
        }
    }
}

/// True if neither the peer nor its device copies can reach this side's memory by this link any more.
pub fn is_finished(link: &Link) -> bool {
    let flies = || (0..FLIGHTS).any(|k| link.peer.flight(k).load(Ordering::Acquire) != 0);
    link.peer_left() && (!flies() || link.is_quiet())
}

/// True if the peer of this link ever resolved region `index` (or one that shares its filter bit).
pub fn used(link: &Link, index: u32) -> bool {
    let (word, bit) = link.peer.filter(index);
    word.load(Ordering::SeqCst) & bit != 0
}
