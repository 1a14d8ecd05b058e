// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RMA that this side initiates. Each operation becomes a frame. Short data is copied behind the frame's header; the
//! kernel gathers long data from the caller's memory.

use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::mr::DEVICE_DESC;
use crate::mr::Paths;
use crate::prov::bind::{ANY_PATH, Ending};
use crate::prov::flags;
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov, Pieces, RmaIov, measure};
use crate::prov::tcp::conn::{READS, ReadOp, WriteOp, WriteStatus};
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::fault::{AcceptedOp, PostedOp};
use crate::prov::tcp::limits::{INJECT_SIZE, MAX_MSG, TX_SIZE};
use crate::prov::tcp::memory::source::source_of;
use crate::prov::tcp::refusal::RemoteAddr;
use crate::prov::tcp::state::State;
use crate::prov::tcp::stream::body::{Body, Owner};
use crate::prov::tcp::stream::tx::QUEUE_MAX;
use crate::prov::tcp::wire::frame;
use crate::prov::tcp::wire::frame::{DATA, Header, Kind, PROMPT};

/// Most bytes of data that are copied: up to this length a copy is cheaper than one more piece for the kernel.
pub const COPY_MAX: usize = 4 << 10;

/// Checks the lengths of an operation's local pieces; returns their sum.
pub fn measure_op(local: &[Iov], c: &Common, read: bool) -> Result<usize> {
    let total = measure(local, MAX_MSG)?;
    if c.flags & flags::INJECT != 0 && !read && total > INJECT_SIZE {
        return Err(Error::new(errno::EMSGSIZE, format!("len: {total} bytes, an inject call takes up to inject_size {INJECT_SIZE}")));
    }
    Ok(total)
}

/// The device that the local pieces lie on, or the host.
pub fn site_of(domain: &Domain, desc: u64, local: &[Iov]) -> Result<Site> {
    if desc & DEVICE_DESC == 0 { Ok(Site::HOST) } else { domain.local_site(desc, local) }
}

/// The first address and key of an operation, for the words of an error.
fn beginning(remote: &[RmaIov]) -> RemoteAddr {
    remote.first().map_or(RemoteAddr::default(), |r| RemoteAddr { addr: r.addr, key: r.key })
}

/// The path of an operation as this side's memory and the peer's key suggest; for the statistics alone.
#[inline]
pub fn path_of(site: Site, key: u64) -> Paths {
    if site.is_host() && crate::prov::tcp::memory::mr::names_device(key) != Some(true) { Paths::SOCKET } else { Paths::STAGED }
}

impl State {
    /// Fails if the endpoint may not use the path that local device memory takes. For local host memory the target
    /// decides, because the path depends on the target's memory.
    pub fn check_path(&self, domain: &Domain, site: Site) -> Result<()> {
        if site.is_host() || self.allowed(domain).contains(Paths::STAGED) {
            return Ok(());
        }
        let words = format!("{site} memory needs the path staged, which this endpoint's options or GDRFAB_PATHS do not permit");
        Err(Error::coded(errno::EOPNOTSUPP, Code::Path, words))
    }

    /// The paths that this endpoint and its domain permit.
    pub fn allowed(&self, domain: &Domain) -> Paths {
        self.options.policy.allowed() & domain.modes.paths
    }

    /// The value of the header's `paths` for an operation with local memory at `site`: the paths that the target may use.
    #[inline]
    pub fn paths_bits(&self, domain: &Domain, site: Site) -> u8 {
        let allowed = if site.is_host() { self.allowed(domain) } else { Paths::SOCKET | Paths::STAGED };
        let bit = |path, bit| if allowed.contains(path) { bit } else { 0 };
        bit(Paths::SOCKET, frame::SOCKET) | bit(Paths::STAGED, frame::STAGED)
    }

    /// Checks and posts an RMA operation.
    pub fn rma(&mut self, domain: &Domain, dir: Dir, local: &[Iov], remote: &[RmaIov], c: &Common) -> Result<()> {
        let total = measure_op(local, c, dir == Dir::Read)?;
        if remote.is_empty() || remote.len() > IOV_LIMIT {
            return Err(Error::invalid(format!("rma_iov_count: {}, must be 1 to {IOV_LIMIT}", remote.len())));
        }
        let there = remote.iter().try_fold(0usize, |sum, r| sum.checked_add(r.len));
        if there != Some(total) {
            return Err(Error::invalid("rma_iov: the remote lengths do not sum to the local ones"));
        }
        if self.bind.tx.is_none() && dir == Dir::Read && self.bind.counters.read.is_none() {
            return Err(Error::new(errno::ENOCQ, "ep: no completion queue or counter is bound for reads"));
        }
        self.up()?;
        let site = site_of(domain, c.desc, local)?;
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count: too many pieces"))?;
        let wanted = self.bind.wants_entry(c.flags);
        let held = self.held();
        let conn = self.up()?;
        let waits = conn.tx.waiting() > QUEUE_MAX || conn.keeps_back(c.flags);
        let full = conn.outstanding() + held >= TX_SIZE || waits || (dir == Dir::Read && conn.reads.len() >= READS);
        let fenced = c.flags & flags::FENCE != 0 && !conn.reads.is_empty();
        if full || fenced || !self.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let deadline = self.deadline(c);
        let kind = flags::RMA | if dir == Dir::Read { flags::READ } else { flags::WRITE };
        let end = self.bind.place(Ending::of(c, kind, total, pieces.first(), wanted, deadline));
        if c.flags & ANY_PATH == 0
            && let Err(e) = self.check_path(domain, site)
        {
            self.fail(&end, e);
            return Ok(());
        }
        self.stats.moved(path_of(site, remote.first().map_or(0, |r| r.key)), total);
        if self.faults.is_some() {
            let posted = PostedOp::new(pieces, site, c, end);
            if let Some(accepted) = self.apply_faults(domain, AcceptedOp::Rma { dir, remote: remote.into(), posted }) {
                self.start(domain, accepted);
            }
            return Ok(());
        }
        self.start_rma(domain, dir, pieces, remote, c, end, site);
        Ok(())
    }

    /// Sends the frame of an accepted RMA operation.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub fn start_rma(&mut self, domain: &Domain, dir: Dir, pieces: Pieces, remote: &[RmaIov], c: &Common, end: Ending, site: Site) {
        let paths = if c.flags & ANY_PATH == 0 { self.paths_bits(domain, site) } else { frame::SOCKET | frame::STAGED };
        match dir {
            Dir::Write => self.put_write(remote, c, end, pieces, site, paths),
            Dir::Read => self.put_read(remote, end, pieces, site, paths),
        }
        self.send_or_batch(domain, c.flags);
    }

    /// Queues the WRITE of an accepted operation.
    fn put_write(&mut self, remote: &[RmaIov], c: &Common, end: Ending, pieces: Pieces, site: Site, paths: u8) {
        let stream = self.options.stream;
        let has_data = c.flags & flags::REMOTE_CQ_DATA != 0;
        let early = c.flags & flags::INJECT_COMPLETE != 0;
        let Some(conn) = self.conn.as_deref_mut() else { return };
        let total = end.len;
        let source = if total > 0 && (total > COPY_MAX || !site.is_host()) {
            let owned = c.flags & flags::INJECT != 0;
            match source_of(&mut conn.tx.lanes, pieces.clone(), site, total, owned, stream) {
                Ok(source) => Some(source),
                Err(e) => return self.fail(&end, e),
            }
        } else {
            None
        };
        conn.sequence = conn.sequence.wrapping_add(1);
        let owner = Owner::Write(conn.sequence);
        let body = source.map(|source| conn.body(Body::new(source, owner, early.then_some(end), total as u64)));
        let bits = if has_data { DATA } else { 0 }
            | if c.flags & flags::DELIVERY_COMPLETE != 0 { PROMPT } else { 0 }
            | body.as_ref().map_or(0, Body::flag);
        conn.put(Header { pieces: remote.len() as u8, paths, ..Header::new(Kind::Write, bits, total as u64) });
        if has_data {
            conn.tx.put_word(c.data);
        }
        for r in remote {
            conn.tx.put_word(r.addr);
            conn.tx.put_word(r.len as u64);
            conn.tx.put_word(r.key);
        }
        match body {
            Some(body) => conn.tx.put_body(body),
            None => {
                conn.tx.put_pieces(pieces.as_slice());
                if early {
                    conn.tx.mark(end, owner);
                }
            }
        }
        let status = if early { WriteStatus::Reported } else { WriteStatus::Pending };
        // An operation that completes when its bytes are out must not complete a second time at the acknowledgement.
        let later = if early { Ending { wanted: false, ticket: None, ..end } } else { end };
        conn.writes.push_back(WriteOp { end: later, at: beginning(remote), status, refused: None });
    }

    /// Queues the READ of an accepted operation.
    fn put_read(&mut self, remote: &[RmaIov], end: Ending, pieces: Pieces, site: Site, paths: u8) {
        let stream = self.options.stream;
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if !site.is_host()
            && let Err(e) = conn.rx.lanes.after(site, stream)
        {
            return self.fail(&end, e);
        }
        conn.put(Header { pieces: remote.len() as u8, paths, ..Header::new(Kind::Read, 0, end.len as u64) });
        for r in remote {
            conn.tx.put_word(r.addr);
            conn.tx.put_word(r.len as u64);
            conn.tx.put_word(r.key);
        }
        conn.reads.push_back(ReadOp { end, at: beginning(remote), pieces, site, over: false });
    }

    /// Sends the queue, unless further operations are expected. An injected operation is sent at once: nobody awaits
    /// its completion, so no later call may come to send it.
    #[inline]
    pub fn send_or_batch(&mut self, domain: &Domain, op_flags: u64) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if conn.tx.blocked {
            return;
        }
        let may_batch = match op_flags & (flags::MORE | flags::INJECT) {
            0 => conn.may_batch(),
            flags::INJECT => false,
            _ => !conn.tx.is_worth_a_call(),
        };
        if may_batch && !self.is_unattended(domain) {
            return;
        }
        self.flush();
    }
}
