// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomics: by the peer's lane, in the order of what else goes there; of the endpoint to itself, by this process's CPU.

use super::domain::Domain;
use super::peer::{Waiting, What};
use super::state::State;
use crate::error::Result;
use crate::hmem::Site;
use crate::prov::atomic::{AtomicOp, carry_out, need};
use crate::prov::op::{Common, Iov, Pieces, RmaIov};

impl State {
    /// Posts an atomic operation, which was checked.
    pub fn atomic(&mut self, domain: &Domain, op: &AtomicOp, c: &Common) -> Result<()> {
        self.check_enabled()?;
        let id = self.route(c.peer)?;
        let local = if op.what.fetches() { op.with.old } else { op.with.operand };
        let end = self.end_of(c, op.kind(), &[local], op.what.bytes(), 0);
        if self.own == Some(id) {
            let done = self.atomic_own(domain, op);
            self.end(&end, done);
            return Ok(());
        }
        let operands = op.operands();
        // SAFETY: the bytes stay with the operation.
        let pieces = Pieces::One(unsafe { Iov::of(&operands) });
        let what = What::Atomic(Box::new(*op));
        self.queue(domain, id, Waiting { end, flags: c.flags, pieces, descs: Vec::new(), site: Site::HOST, owned: Some(operands), what });
        Ok(())
    }

    fn atomic_own(&mut self, domain: &Domain, op: &AtomicOp) -> Result<()> {
        let (what, bytes) = (op.what, op.what.bytes());
        // The region stays as long as the lock is held.
        let regions = domain.regions.lock();
        let r = RmaIov { addr: op.addr, len: bytes, key: op.key };
        let (region, skip) = regions.range(&r, need(what), self.options.policy)?;
        let pieces: Vec<Iov> = crate::prov::op::parts(&region.pieces, skip, bytes).collect();
        carry_out(what, region.site, &pieces, None, op.with)?;
        if let Some(counter) = region.counter.as_ref().filter(|_| what.writes()) {
            counter.add(1);
        }
        let path = super::own::path_of(region.site);
        self.past.moved(path, bytes);
        Ok(())
    }
}
