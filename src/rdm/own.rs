// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RMA of an endpoint to itself: copies within the process, whose keys, bounds and rights are checked as a peer's are.

use super::domain::{Domain, Region, Regions};
use super::peer::End;
use super::state::State;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Site};
use crate::mr::{Access, PathPolicy, Paths};
use crate::prov::av::UNSPEC;
use crate::prov::flags;
use crate::prov::op::{Common, Dir, Iov, RmaIov, parts};
use crate::prov::queue::Completion;
use crate::prov::report::{PathReport, Refusals};

/// Bytes that are copied before a region may close.
const TURN: usize = 1 << 20;

fn refused(code: Code, errno: i32) -> Error {
    Error::coded(errno, code, Code::words(code.0))
}

/// The path that copies within the process take.
pub(super) fn path_of(site: Site) -> Paths {
    if site.is_host() { Paths::DIRECT } else { Paths::IPC }
}

impl Regions {
    fn of_key(&self, key: u64) -> Result<&Region> {
        let region = self.by_key.get(&key).and_then(|at| self.all.get(*at as usize)).and_then(Option::as_ref);
        region.filter(|r| r.key == key).ok_or_else(|| refused(Code::Key, errno::EKEYREJECTED))
    }

    /// Checks a range that an operation names; gives its region, and the byte where it begins.
    pub(super) fn range(&self, r: &RmaIov, need: Access, policy: PathPolicy) -> Result<(&Region, usize)> {
        let region = self.of_key(r.key)?;
        let within = |skip: &u64| skip.checked_add(r.len as u64).is_some_and(|end| end <= region.len);
        let skip = r.addr.checked_sub(region.base).filter(within).ok_or_else(|| refused(Code::Bounds, errno::ERANGE))?;
        if !region.access.contains(need) {
            return Err(refused(Code::Access, errno::EACCES));
        }
        let path = path_of(region.site);
        if region.pieces.is_empty() {
            let words = "a region of a descriptor, which lies nowhere in this process: the endpoint itself cannot copy it";
            return Err(Error::coded(errno::EOPNOTSUPP, Code::Path, words));
        }
        if !policy.allowed().contains(path) || !region.policy.allowed().contains(path) {
            return Err(refused(Code::Path, errno::EOPNOTSUPP));
        }
        Ok((region, skip as usize))
    }
}

/// Copies as many bytes as both have; of host memory they may overlap.
fn copy((there, to): (Site, Iov), (here, from): (Site, Iov)) -> Result<()> {
    let len = to.len().min(from.len());
    // SAFETY: both are memory (`Iov::new`) at their sites, whose drivers check a device's.
    unsafe {
        match (there.is_host(), here.is_host()) {
            (true, true) => {
                std::ptr::copy(from.as_ptr(), to.as_ptr(), len);
                Ok(())
            }
            (true, false) => here.load(to.as_ptr(), from.addr() as u64, len),
            (false, true) => there.store(to.addr() as u64, from.as_ptr(), len),
            (false, false) if there.iface == here.iface => {
                hmem::get(there.iface)?.copy(there.device, hmem::Dir::Within, to.addr() as u64, from.addr() as u64, len)
            }
            (false, false) => {
                let mut bytes = vec![0u8; len.min(TURN)];
                for at in (0..len).step_by(TURN) {
                    let n = (len - at).min(TURN);
                    here.load(bytes.as_mut_ptr(), (from.addr() + at) as u64, n)?;
                    there.store((to.addr() + at) as u64, bytes.as_ptr(), n)?;
                }
                Ok(())
            }
        }
    }
}

/// Memory at a site, from this byte of the pieces on.
type Run<'a> = (Site, &'a [Iov], usize);

/// Copies `len` bytes from or to `local`, which both have, without a copy of them all between.
pub(super) fn copy_pieces(dir: Dir, (here, local, mut at): Run<'_>, (there, remote, skip): Run<'_>, len: usize) -> Result<()> {
    for remote in parts(remote, skip, len) {
        let mut moved = 0;
        for local in parts(local, at, remote.len()) {
            let (local, remote) = ((here, local), (there, remote.part(moved, local.len())));
            let (to, from) = if dir == Dir::Write { (remote, local) } else { (local, remote) };
            copy(to, from).map_err(|e| Error::coded(e.errno, Code::Fault, e.words))?;
            moved += local.1.len();
        }
        at += remote.len();
    }
    Ok(())
}

/// Moves the bytes of an operation; nothing of it, if any piece is refused.
fn run(domain: &Domain, dir: Dir, local: (Site, &[Iov]), remote: &[RmaIov], policy: PathPolicy) -> Result<Paths> {
    let need = if dir == Dir::Write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
    let mut path = Paths::DIRECT;
    for r in remote {
        path = path_of(domain.regions.lock().range(r, need, policy)?.0.site);
    }
    let mut at = 0;
    for r in remote {
        let mut done = 0;
        while done < r.len {
            let n = (r.len - done).min(TURN);
            let part = RmaIov { addr: r.addr.wrapping_add(done as u64), len: n, key: r.key };
            // The region stays as long as the lock is held.
            let regions = domain.regions.lock();
            let (region, skip) = regions.range(&part, need, policy)?;
            copy_pieces(dir, (local.0, local.1, at), (region.site, &region.pieces, skip), n)?;
            (at, done) = (at + n, done + n);
        }
        let regions = domain.regions.lock();
        if dir == Dir::Write
            && let Ok(Some(counter)) = regions.of_key(r.key).map(|r| r.counter.as_ref())
        {
            counter.add(1);
        }
    }
    Ok(path)
}

impl State {
    /// The index by which this endpoint knows itself.
    pub fn own_source(&self) -> u64 {
        self.own.and_then(|id| self.peers.get(id as usize)).and_then(Option::as_deref).map_or(UNSPEC, |p| p.source)
    }

    /// An RMA operation to this very endpoint, which is over when this returns.
    pub fn rma_own(&mut self, domain: &Domain, dir: Dir, local: (Site, &[Iov]), remote: &[RmaIov], c: &Common, end: &End) {
        match run(domain, dir, local, remote, self.options.policy) {
            Ok(path) => {
                self.past.moved(path, end.len);
                if dir == Dir::Write && c.flags & flags::REMOTE_CQ_DATA != 0 {
                    let kind = flags::REMOTE_WRITE | flags::RMA | flags::REMOTE_CQ_DATA;
                    let entry = Completion { context: 0, flags: kind, len: end.len, buf: 0, data: c.data };
                    self.told_of_write(entry, self.own_source());
                }
                self.succeed(end);
            }
            Err(e) => self.fail(end, e),
        }
    }

    /// Which path operations to this very endpoint take.
    pub fn report_own(&self, domain: &Domain, key: u64) -> Result<PathReport> {
        let regions = domain.regions.lock();
        let region = regions.of_key(key)?;
        let mut refusals = Refusals::refused("the endpoint itself is meant, and copies within its process");
        let possible = RmaIov { addr: region.base, len: 0, key };
        let refusal = regions.range(&possible, Access::empty(), self.options.policy).err();
        let path = path_of(region.site);
        let place = if path == Paths::DIRECT { &mut refusals.direct } else { &mut refusals.ipc };
        *place = refusal;
        let paths = refusals.possible();
        let text = format!("to this very endpoint, {} memory: by copies within the process\n{}", region.site, refusals.lines(paths));
        Ok(PathReport { path: paths, paths, offered: path, refusals, text })
    }
}
