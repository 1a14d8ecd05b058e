// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomic operations: their arguments on the way from the C interface to a provider, and the way in which the target's
//! CPU carries them out. On one region, either only CPUs carry out atomics (that of the owner, and those of processes
//! of the same host that map the memory) or only the card does.

use super::bind::Ending;
use super::flags;
use super::op::{Common, Iov};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::mr::piece::{load, store};
use crate::mr::{Access, DEVICE_DESC};
pub use crate::sys::atomics::{Atomic, BYTES_MAX, DATATYPES, Datatype, Form, OPERANDS_MAX, OPS, Op, Operands};
use crate::sys::atomics::{check, probe, run};
use crate::sys::isolated::{may_be_truncated, run_isolated};
use parking_lot::Mutex;

/// An atomic operation that is posted.
#[derive(Clone, Copy, Debug)]
pub struct AtomicOp {
    pub what: Atomic,
    pub with: Operands,
    pub addr: u64,
    pub key: u64,
}

/// The rights to the peer's region that an operation needs.
#[inline(always)]
pub fn need(what: Atomic) -> Access {
    let mut need = Access::empty();
    need.set(Access::REMOTE_WRITE, what.writes());
    need.set(Access::REMOTE_READ, what.fetches());
    need
}

impl AtomicOp {
    /// Refuses an operation with wrong local arguments.
    #[inline(always)]
    pub fn check(&self, common: &Common, descs: &[u64]) -> Result<()> {
        let odd = self.addr & (self.what.datatype.size() as u64 - 1) != 0;
        let device = descs.iter().fold(0, |all, d| all | d) & DEVICE_DESC != 0;
        match odd | device | (common.flags & flags::REMOTE_CQ_DATA != 0) {
            false => Ok(()),
            true => self.refuse(common, descs),
        }
    }

    #[cold]
    fn refuse(&self, common: &Common, descs: &[u64]) -> Result<()> {
        let size = self.what.datatype.size();
        if !self.addr.is_multiple_of(size as u64) {
            return Err(Error::invalid(format!("addr: {:#x} is not a multiple of the {size} bytes of an element", self.addr)));
        }
        if descs.iter().any(|d| d & DEVICE_DESC != 0) {
            let words = "desc: operands and results of atomics lie in host memory";
            return Err(Error::new(errno::EOPNOTSUPP, words));
        }
        match common.flags & flags::REMOTE_CQ_DATA {
            0 => Ok(()),
            _ => Err(Error::new(errno::EBADFLAGS, "flags: an atomic operation carries no data for the peer's queue")),
        }
    }

    /// A copy of the operands, one behind the other.
    pub fn operands(&self) -> Box<[u8]> {
        let mut bytes = Vec::with_capacity(self.what.operands());
        self.with.operand.append_to(&mut bytes);
        self.with.compare.append_to(&mut bytes);
        bytes.into()
    }

    /// The buffer that the completion names.
    #[inline(always)]
    pub fn buf(&self) -> usize {
        if self.what.fetches() { self.with.old.addr() } else { self.with.operand.addr() }
    }

    /// The flags of the completion.
    #[inline(always)]
    pub fn kind(&self) -> u64 {
        flags::ATOMIC | if self.what.fetches() { flags::READ } else { flags::WRITE }
    }

    /// The record of the outstanding operation.
    pub fn ending(&self, c: &Common, wanted: bool, deadline: u64) -> Ending {
        Ending::of(c, self.kind(), self.what.bytes(), self.buf(), wanted, deadline)
    }
}

/// Refuses operations that cards do not carry out. Cards carry out SUM, ATOMIC_READ and CSWAP of one 64-bit integer.
pub fn check_card(Atomic { op, datatype, count, .. }: Atomic) -> Result<()> {
    let (known, word) = (matches!(op, Op::Sum | Op::Read | Op::Cswap), matches!(datatype, Datatype::I64 | Datatype::U64));
    match count {
        _ if !known || !word => {
            let words = format!("op: RDMA devices have SUM, ATOMIC_READ and CSWAP of 64-bit integers, not {op:?} of {datatype:?}");
            Err(Error::new(errno::EOPNOTSUPP, words))
        }
        1 => Ok(()),
        0 => Err(Error::fixed(errno::EOPNOTSUPP, "count: 0; an RDMA device needs 1 element")),
        n => Err(Error::new(errno::EMSGSIZE, format!("count: {n}; an RDMA device changes 1 element at once"))),
    }
}

/// Carries out an operation on `pieces` of a region, which the caller keeps from being closed. `asks` says that the
/// program may have unmapped the pages, so the kernel is first asked whether the pages are there. If the pages then
/// belong to a file, only a child process touches them, because another process may shorten the file at any moment.
pub fn carry_out(what: Atomic, site: Site, pieces: &[Iov], asks: bool, with: Operands) -> Result<()> {
    if !site.is_host() {
        return on_device(what, site, pieces, with);
    }
    check(pieces, what.datatype)?;
    if asks {
        let mut live = pieces.iter().filter(|p| !p.is_empty());
        live.clone().try_for_each(|piece| probe(*piece, what.writes()))?;
        if live.any(|p| may_be_truncated(p.addr()) || may_be_truncated(p.addr() + p.len() - 1)) {
            // SAFETY: pieces of a region (`Iov::new`), whose rights were checked.
            return run_isolated(|| unsafe { run(what, pieces, with) });
        }
    }
    // SAFETY: pieces of a region (`Iov::new`), whose pages are there and whose rights were checked.
    unsafe { run(what, pieces, with) };
    Ok(())
}

/// Carries out an operation on device memory, which the CPU cannot reach: copies the elements to the host, changes them, and
/// copies them back, one operation at a time.
#[cold]
fn on_device(what: Atomic, site: Site, pieces: &[Iov], with: Operands) -> Result<()> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let mut words = [0u64; BYTES_MAX / 8];
    // SAFETY: the words are a local array, and hold as many bytes as an operation has at most.
    let (bytes, here) = unsafe {
        let at = words.as_mut_ptr().cast::<u8>();
        (std::slice::from_raw_parts_mut(at, what.bytes().min(BYTES_MAX)), Iov::new(at as usize, what.bytes().min(BYTES_MAX)))
    };
    let failed = |e: Error| Error::coded(e.errno, Code::Fault, e.words);
    load(site, pieces, 0, bytes).map_err(failed)?;
    // SAFETY: `here` covers the local array `words`.
    unsafe { run(what, &[here], with) };
    if what.writes() { store(site, pieces, 0, bytes).map_err(failed) } else { Ok(()) }
}
