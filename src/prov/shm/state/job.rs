// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that this side has accepted and that wait for their start, or that go into the ring part by part.

use crate::error::{Code, Error, Result, errno};
use crate::fallible::{with_room, zeroed};
use crate::hmem::{self, Site};
use crate::mr::{Access, piece};
use crate::prov::atomic::AtomicOp;
use crate::prov::bind::Ending;
use crate::prov::flags;
use crate::prov::op::{Dir, IOV_LIMIT, Iov, Pieces, RmaIov, parts};
use crate::sys::time;

/// The progress of a staged operation, whose parts go into the ring as room becomes free.
#[derive(Clone, Copy)]
pub struct Stream {
    pub slot: u16,
    pub generation: u16,
    /// Index of the remote piece in progress.
    pub at: usize,
    /// Bytes of the piece `at` that were sent.
    pub inside: usize,
    /// Bytes of the whole operation that were sent.
    pub sent: usize,
}

/// An RMA operation that could not start at once, or that goes into the ring part by part.
pub struct RmaJob {
    /// The place of the local pieces: the host or a device.
    pub site: Site,
    /// The caller's device stream to wait for; 0: none.
    pub stream_after: u64,
    pub dir: Dir,
    pub local: Pieces,
    pub remote: [RmaIov; IOV_LIMIT],
    pub count: usize,
    /// Bytes of the remote pieces above. After `keep` has dropped pieces, `end` still has the bytes of the whole
    /// operation.
    pub total: usize,
    pub flags: u64,
    pub data: u64,
    pub desc: u64,
    pub end: Ending,
    /// A copy of the caller's bytes, in which `local` then lies.
    pub owned: Option<Box<[u8]>>,
    pub stream: Option<Stream>,
    /// Fault injection delays the operation until this time; 0: no delay.
    pub held_until: u64,
}

impl RmaJob {
    pub fn remote(&self) -> &[RmaIov] {
        &self.remote[..self.count]
    }

    pub fn need(&self) -> Access {
        match self.dir {
            Dir::Write => Access::REMOTE_WRITE,
            Dir::Read => Access::REMOTE_READ,
        }
    }

    pub fn has_data(&self) -> bool {
        self.flags & flags::REMOTE_CQ_DATA != 0
    }

    /// Copies the bytes of an inject call, because the caller may reuse the buffer once the call has returned.
    pub fn copy_injected(&mut self) -> Result<()> {
        if self.flags & flags::INJECT == 0 || self.owned.is_some() || self.dir == Dir::Read {
            return Ok(());
        }
        self.take_copy()
    }

    /// Copies the caller's bytes and works on the copy from now on.
    pub fn take_copy(&mut self) -> Result<()> {
        wait_for_stream(self.site, &mut self.stream_after)?;
        let bytes = gather(self.site, self.local.as_slice(), self.total)?;
        // SAFETY: the bytes stay allocated as long as the operation, which owns them.
        self.local = Pieces::One(unsafe { Iov::of(&bytes) });
        self.owned = Some(bytes);
        self.site = Site::HOST;
        self.desc = 0;
        Ok(())
    }

    /// Keeps only the remote pieces that `which` picks, because the bytes of the other pieces have been copied.
    pub fn keep(&mut self, which: impl Fn(usize) -> bool) {
        let (mut local, mut skip) = (Vec::new(), 0);
        let count = std::mem::take(&mut self.count);
        self.total = 0;
        for i in 0..count {
            let r = self.remote[i];
            if which(i) {
                local.extend(parts(self.local.as_slice(), skip, r.len));
                self.remote[self.count] = r;
                self.count += 1;
                self.total += r.len;
            }
            skip += r.len;
        }
        self.local = Pieces::of_list(local);
    }

    /// The slot that the job has taken, if any. The function that cancels the job must release the slot.
    pub fn slot(&self) -> Option<u16> {
        self.stream.map(|s| s.slot)
    }
}

/// An atomic operation that could not start at once.
pub struct AtomicJob {
    pub op: AtomicOp,
    pub operands: Box<[u8]>,
    pub flags: u64,
    pub end: Ending,
    /// Fault injection delays the operation until this time; 0: no delay.
    pub held_until: u64,
}

/// A send that could not start at once.
pub struct SendJob {
    pub pieces: Pieces,
    pub site: Site,
    /// The caller's device stream to wait for; 0: none.
    pub stream_after: u64,
    pub total: usize,
    pub flags: u64,
    pub data: u64,
    pub desc: u64,
    pub end: Ending,
    pub owned: Option<Box<[u8]>>,
    /// Fault injection delays the operation until this time; 0: no delay.
    pub held_until: u64,
}

impl SendJob {
    pub fn copy_injected(&mut self) -> Result<()> {
        if self.flags & flags::INJECT == 0 || self.owned.is_some() {
            return Ok(());
        }
        self.take_copy()
    }

    /// Copies the caller's bytes and works on the copy from now on.
    pub fn take_copy(&mut self) -> Result<()> {
        let bytes = gather(self.site, self.pieces.as_slice(), self.total)?;
        (self.site, self.desc) = (Site::HOST, 0);
        // SAFETY: the bytes stay allocated as long as the operation, which owns them.
        self.pieces = Pieces::One(unsafe { Iov::of(&bytes) });
        self.owned = Some(bytes);
        Ok(())
    }
}

/// An operation that has not started, or the operation at the head of the queue that goes into the ring part by part.
pub enum Job {
    Rma(Box<RmaJob>),
    Atomic(Box<AtomicJob>),
    Send(Box<SendJob>),
}

impl Job {
    /// True if fault injection still delays the start.
    pub fn is_held(&self) -> bool {
        let until = match self {
            Job::Rma(job) => job.held_until,
            Job::Atomic(job) => job.held_until,
            Job::Send(job) => job.held_until,
        };
        until != 0 && time::now_ns() < until
    }

    pub fn ending(&self) -> &Ending {
        match self {
            Job::Rma(job) => &job.end,
            Job::Atomic(job) => &job.end,
            Job::Send(job) => &job.end,
        }
    }
}

/// The outcome of an attempt to start an operation.
pub enum Step {
    /// The operation is over.
    Done(Result<()>),
    /// The operation is in flight: it waits for a report of the peer, or for a device's copy.
    InFlight,
    /// The operation cannot start now. The caller tries again after progress.
    Blocked,
}

/// Copies `total` bytes out of pieces of memory at `site`.
pub fn gather(site: Site, pieces: &[Iov], total: usize) -> Result<Box<[u8]>> {
    if site.is_host() {
        let mut bytes = with_room(total)?;
        for v in pieces.iter().filter(|v| !v.is_empty()) {
            // SAFETY: the caller that posted the pieces promised that they are readable.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(v.addr() as *const u8, v.len()) });
        }
        return Ok(bytes.into());
    }
    let mut bytes = zeroed(total)?;
    piece::load(site, pieces, 0, &mut bytes)?;
    Ok(bytes)
}

/// Waits for the present work of the caller's device stream, before a copy that goes to no stream of the library. Sets
/// `stream` to 0, so that an operation waits only once.
pub fn wait_for_stream(site: Site, stream: &mut u64) -> Result<()> {
    let theirs = std::mem::take(stream);
    if theirs != 0 && !site.is_host() {
        // A new stream of the library is ordered behind the caller's stream; dropping the new stream waits for its
        // work.
        hmem::get(site.iface)?.stream(site.device)?.after(theirs)?;
    }
    Ok(())
}

/// The error of an operation that needs a driver, on an endpoint that calls none.
pub fn needs_driver(words: &str) -> Error {
    let words = format!("{words} needs calls of a device driver in this process, which GDRFAB_OPT_DRIVER_CALLS=0 forbids");
    Error::coded(errno::EOPNOTSUPP, Code::Path, words)
}
