// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomic operations. The peer's lane carries out an atomic, in order with the other operations to the peer. On the
//! endpoint's own memory, the CPU of this process carries out the atomic. A region registered with access `GDRFAB_ATOMIC`
//! is reserved for the atomics of its card: an atomic by any other way is refused, because an atomic of a CPU and one of a
//! card would overwrite each other's result.

use super::loopback::{parts_of, path_of};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::prov::atomic::{AtomicOp, carry_out, check_card, need};
use crate::prov::op::{Common, Iov, Pieces, RmaIov};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::peer::{PendingKind, PendingOp};
use crate::rdm::state::State;

/// The error of an atomic that would reach a card's region by another way than the card.
#[cold]
pub(in crate::rdm) fn only_by_card(key: u64, way: &str) -> Error {
    let words = format!("key: {key:#x} names a region with access GDRFAB_ATOMIC, where atomics are the card's alone: none by way of {way}");
    Error::coded(errno::EOPNOTSUPP, Code::Path, words)
}

impl State {
    /// Posts an atomic operation whose arguments the caller has checked.
    pub fn atomic(&mut self, domain: &Domain, op: &AtomicOp, c: &Common) -> Result<()> {
        self.check_enabled()?;
        if domain.is_card_key(op.key) {
            check_card(op.what)?;
        }
        let id = self.route(c.peer)?;
        let local = if op.what.fetches() { op.with.old } else { op.with.operand };
        let completion = self.completion_of(c, op.kind(), &[local], op.what.bytes(), 0);
        if self.peers.is_loopback(id) {
            let done = self.atomic_loopback(domain, op);
            self.reports.finish(&self.bind, &completion, done);
            return Ok(());
        }
        let operands = op.operands();
        // SAFETY: the bytes are on the heap and stay with the operation, in `owned`.
        let pieces = Pieces::One(unsafe { Iov::of(&operands) });
        let what = PendingKind::Atomic(Box::new(*op));
        self.queue(
            domain,
            id,
            PendingOp {
                completion,
                delayed_until: 0,
                flags: c.flags,
                pieces,
                descs: Vec::new(),
                site: Site::HOST,
                owned: Some(operands),
                kind: what,
            },
        );
        Ok(())
    }

    fn atomic_loopback(&mut self, domain: &Domain, op: &AtomicOp) -> Result<()> {
        if domain.is_card_key(op.key) {
            return Err(only_by_card(op.key, "this very endpoint"));
        }
        let (what, bytes) = (op.what, op.what.bytes());
        let r = RmaIov { addr: op.addr, len: bytes, key: op.key };
        let (inside, skip, counter) = domain.regions.lock().range(&r, need(what), self.options.policy)?;
        let pieces: Vec<Iov> = parts_of(&inside, skip, bytes).collect();
        carry_out(what, inside.site(), &pieces, true, op.with)?;
        if let (true, Some(counter)) = (what.writes(), counter) {
            counter.add(1);
        }
        self.reports.past_stats().moved(path_of(inside.site()), bytes);
        Ok(())
    }
}
