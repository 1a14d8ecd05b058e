// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomics: by the peer's lane, in the order of what else goes there; of the endpoint to itself, by this process's CPU. In a
//! region that was declared so they are the card's alone, and other ways to it are refused: two actors lose each other's.

use super::loopback::{parts_of, path_of};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::prov::atomic::{AtomicOp, carry_out, check_card, need};
use crate::prov::op::{Common, Iov, Pieces, RmaIov};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::peer::{PendingKind, PendingOp};
use crate::rdm::state::State;

/// Of a region where nobody but the card may carry atomics out, and of another way to it.
#[cold]
pub(in crate::rdm) fn only_by_card(key: u64, way: &str) -> Error {
    let words = format!("key: {key:#x} names a region with access GDRFAB_ATOMIC, where atomics are the card's alone: none by way of {way}");
    Error::coded(errno::EOPNOTSUPP, Code::Path, words)
}

impl State {
    /// Posts an atomic operation, which was checked.
    pub fn atomic(&mut self, domain: &Domain, op: &AtomicOp, c: &Common) -> Result<()> {
        self.check_enabled()?;
        if domain.is_cards(op.key) {
            check_card(op.what)?;
        }
        let id = self.route(c.peer)?;
        let local = if op.what.fetches() { op.with.old } else { op.with.operand };
        let end = self.completion_of(c, op.kind(), &[local], op.what.bytes(), 0);
        if self.loopback == Some(id) {
            let done = self.atomic_loopback(domain, op);
            self.end(&end, done);
            return Ok(());
        }
        let operands = op.operands();
        // SAFETY: the bytes stay with the operation.
        let pieces = Pieces::One(unsafe { Iov::of(&operands) });
        let what = PendingKind::Atomic(Box::new(*op));
        self.queue(
            domain,
            id,
            PendingOp {
                end,
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
        if domain.is_cards(op.key) {
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
        self.past_stats.moved(path_of(inside.site()), bytes);
        Ok(())
    }
}
