// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target's side of a lane. This side tells the peer which memory a key names, and its CPU executes the peer's
//! atomics. Every parcel is input from the peer and is checked.

use super::parcels::protocol_error;
use super::rma::{COUNTS, ONCE};
use crate::error::{Code, Error, Result};
use crate::mr::Access;
use crate::mr::region::Piece;
use crate::mr::registry::CHOSEN_KEY;
use crate::prov::Parcel;
use crate::prov::atomic::{Atomic, Operands, carry_out, need};
use crate::prov::op::Iov;
use crate::prov::parcel::Flat;
use crate::prov::verbs::domain::Domain;
use crate::prov::verbs::shared::Shared;
use crate::prov::verbs::state::State;
use crate::prov::verbs::state::lane::kind;
use std::sync::Arc;

/// The number of words that a parcel of this kind has. `None`: there is no such kind.
fn words_of(kind: u8) -> Option<usize> {
    Some(match kind {
        kind::GONE | kind::SYNC | kind::COUNT => 1,
        kind::ASK | kind::WRITTEN | kind::DONE => 2,
        kind::ATOMIC => 4,
        kind::TOLD => 7,
        kind::RAIL => 8,
        _ => return None,
    })
}

impl State {
    /// Handles a parcel that is the lane's own and not the caller's.
    pub(in crate::prov::verbs) fn on_request(&mut self, domain: &Domain, kind: u8, parcel: &Flat<'_>) -> Result<()> {
        let bytes = matches!(kind, kind::ATOMIC | kind::DONE);
        if words_of(kind) != Some(parcel.words()) || (!bytes && !parcel.is_empty()) {
            return Err(protocol_error("a lane parcel of an unknown kind, or of a wrong length"));
        }
        match kind {
            kind::ASK => {
                let mut words = domain.key_info(parcel.word(1));
                words[0] = parcel.word(0);
                if words[1] == 0
                    && let Some(lane) = &mut self.lane
                {
                    lane.shared_keys.insert(parcel.word(1));
                }
                self.queue_answer(kind::TOLD, &words, &[])
            }
            kind::TOLD => self.on_key_info(parcel),
            kind::GONE => {
                if let Some(lane) = &mut self.lane {
                    lane.forget_key(parcel.word(0));
                }
                Ok(())
            }
            kind::COUNT => {
                domain.count_write(parcel.word(0));
                Ok(())
            }
            kind::WRITTEN => {
                self.bind.remote_data(parcel.word(0) as usize, parcel.word(1));
                Ok(())
            }
            kind::RAIL => self.on_rail_message(&domain.memory, &std::array::from_fn(|i| parcel.word(i))),
            kind::SYNC => self.queue_answer(kind::DONE, &[parcel.word(0), 0], &[]),
            kind::ATOMIC => {
                let what = Atomic::decode(parcel.word(1)).filter(|what| what.operands() == parcel.len());
                let what = what.ok_or_else(|| protocol_error("an unknown atomic operation"))?;
                let mut old = vec![0; if what.fetches() { what.bytes() } else { 0 }];
                match domain.run_atomic(what, parcel.word(2), parcel.word(3), parcel.rest(), &mut old) {
                    Ok(()) => self.queue_answer(kind::DONE, &[parcel.word(0), 0], &old),
                    Err(code) => self.queue_answer(kind::DONE, &[parcel.word(0), code.0 as u64], &[]),
                }
            }
            _ => self.on_ack(parcel),
        }
    }
}

impl Domain {
    /// The answer to ASK: the words of TOLD.
    fn key_info(&self, key: u64) -> [u64; 7] {
        let regions = self.memory.regions.lock();
        let refused = |code: Code| [0, code.0 as u64, 0, 0, 0, 0, 0];
        let Some(region) = regions.find(key) else { return refused(Code::Key) };
        let remote = region.access & (Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC);
        let Some((rkey, shift)) = region.own.name() else { return refused(if remote.is_empty() { Code::Access } else { Code::Path }) };
        region.own.mark_shared();
        // The caller may use a key of its own choice again for another region, so the peer must not store the answer
        // (`ONCE`).
        let once = if key & CHOSEN_KEY == 0 { ONCE } else { 0 } | if region.rma_event { COUNTS } else { 0 };
        [0, 0, u64::from(rkey), shift, region.base, region.location.len, remote.bits() | once]
    }

    /// Executes an atomic of the peer on this side's CPU, and puts the old values into `old`.
    fn run_atomic(&self, what: Atomic, addr: u64, key: u64, operands: &[u8], old: &mut [u8]) -> std::result::Result<(), Code> {
        let (place, site, pieces) = {
            let regions = self.memory.regions.lock();
            let region = regions.find(key).ok_or(Code::Key)?;
            let skip = region.range(addr, what.bytes() as u64, need(what))?;
            // Atomics in a region with the right `ATOMIC` are for the card only.
            if region.access.contains(Access::ATOMIC) || region.own.is_file() {
                return Err(Code::Path);
            }
            region.enter()?;
            let part = |(p, from, n): (&Piece<()>, usize, usize)| Piece { iov: p.iov.part(from, n), ..*p };
            (regions.index_of(key), region.site(), region.walk(skip, what.bytes()).map(part).collect::<Vec<_>>())
        };
        // The region stays entered, but the lock is released, because a driver that hangs must not hold the lock.
        let done = match pieces.iter().any(|p| p.is_stale(site)) {
            true => Err(Code::Fault),
            false => {
                let iovs: Vec<Iov> = pieces.iter().map(|p| p.iov).collect();
                // SAFETY: both are borrowed until this function returns, and `carry_out` keeps neither.
                let with = unsafe { Operands::joined(what, Iov::of(operands), Iov::of_mut(old)) };
                carry_out(what, site, &iovs, true, with).map_err(|e: Error| {
                    crate::log!(Warn, "a peer's atomic operation failed: {e}");
                    if e.code == Code::Bounds { Code::Bounds } else { Code::Fault }
                })
            }
        };
        if let Some(region) = self.memory.regions.lock().at(place) {
            if done.is_ok() && what.writes() {
                region.own.count();
            }
            region.leave();
        }
        done
    }

    /// Counts a write that the peer has reported.
    fn count_write(&self, key: u64) {
        if let Some(region) = self.memory.regions.lock().find(key).filter(|region| region.access.contains(Access::REMOTE_WRITE)) {
            region.own.count();
        }
    }

    /// Tells the peers that may have stored the meaning of a key that the key names nothing any more. A peer gets this
    /// message before all later ones.
    pub(in crate::prov::verbs) fn revoke(&self, key: u64) {
        for ep in self.watch.endpoints() {
            let ep: Arc<Shared> = ep;
            let mut s = ep.state.lock();
            if s.lane.as_mut().is_some_and(|lane| lane.shared_keys.remove(&key))
                && let Err(e) = s.queue_message(kind::GONE, &[key])
            {
                crate::log!(Debug, "{e}");
            }
        }
    }
}
