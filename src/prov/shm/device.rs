// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that a device's driver carries out: it copies between local memory and a mapping of the
//! peer's, device or host on either side, while the caller goes on.
//!
//! Each copy in flight holds a word of this side's segment that names the peer's region, so that the
//! peer does not close the region under it (`quiesce.rs` waits for the word). All copies of an endpoint
//! go to one stream at a time, in the order of posting; other operations wait until they are done.

use super::conn::{Conn, Step};
use super::domain::Domain;
use super::import::still_there;
use super::layout::FLIGHTS;
use super::remote::{Remote, no_such_key};
use super::rma::{self, RmaJob};
use super::state::{Ending, State};
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::hmem::{self, Site, Stream};
use crate::mr::{Paths, piece};
use crate::prov::op::{Dir, IOV_LIMIT, Iov, parts};
use crate::sync::gate;
use crate::sync::primitive::Ordering;
use crate::sync::ring::Header;
use crate::sys::process::{self, Attach, attach_copy};
use crate::sys::time;
use std::collections::VecDeque;

/// Bytes of the bounce buffer between device memory and cross-memory attach.
const BOUNCE: usize = 4 << 20;

/// A stream of copies on a device.
struct Lane {
    site: Site,
    stream: Box<dyn Stream>,
}

/// A copy in flight.
struct Flying {
    ticket: u64,
    end: Ending,
    words: Words,
    dir: Dir,
    data: Option<u64>,
    /// Key, whether it counts writes, and bytes, of each region.
    events: Vec<(u64, bool, usize)>,
    /// The regions, and with them the mappings in which the driver copies.
    _places: Vec<(Remote, u64)>,
    /// Bytes of an inject call.
    _owned: Option<Box<[u8]>>,
}

/// Words of the segment that a copy holds: a bit each.
type Words = u64;

#[derive(Default)]
pub struct Devices {
    lanes: Vec<Lane>,
    /// The lane of everything in flight; none: what it held is done.
    current: usize,
    flights: VecDeque<Flying>,
    held: Words,
    turn: u32,
    /// How the copies of a stream that was given up failed, if they did.
    fate: Option<Error>,
    /// Whether copies may be under way that nobody can know to have ended: then their words stay.
    unquiet: bool,
    /// The caller's stream behind which copies go.
    pub after: Option<u64>,
    /// The process that makes the copies instead of this one.
    pub copier: Option<&'static Copier>,
}

const _: () = assert!(FLIGHTS <= Words::BITS as usize);

impl Devices {
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// Who makes the copies, in words.
    pub fn who(&self) -> String {
        self.copier.map_or("a device".into(), |c| format!("process {} (gdrfab-copier)", c.pid))
    }

    pub fn deadlines(&self) -> impl Iterator<Item = u64> {
        self.flights.iter().map(|f| f.end.deadline)
    }

    /// The lane for `site`; another one than is in use only if nothing is in flight.
    fn lane(&mut self, site: Site) -> Result<Option<usize>> {
        let at = match self.lanes.iter().position(|l| l.site == site) {
            Some(at) => at,
            None => {
                let stream = match self.copier {
                    Some(copier) => copier.stream(site)?,
                    None => hmem::get(site.iface)?.stream(site.device)?,
                };
                self.lanes.push(Lane { site, stream });
                self.lanes.len() - 1
            }
        };
        if at != self.current && !self.is_idle() {
            return Ok(None);
        }
        self.current = at;
        Ok(Some(at))
    }

    fn release(&mut self, link: &super::link::Link, words: Words) {
        if self.unquiet {
            return;
        }
        for k in (0..FLIGHTS).filter(|k| words & 1 << k != 0) {
            link.mine.flight(k).store(0, Ordering::Release);
        }
        self.held &= !words;
    }

    /// Ends a stream that refused a copy; what it took before that still counts.
    fn give_up(&mut self, lane: usize) {
        let last = self.flights.back().map_or(0, |f| f.ticket);
        let mut lane = self.lanes.remove(lane);
        let until = time::now_ns() + config::get().close_ms * 1_000_000;
        self.fate = loop {
            match lane.stream.done() {
                Err(e) => break Some(e),
                Ok(done) if done >= last => break None,
                Ok(_) if time::now_ns() > until => break Some(Error::fixed(errno::EIO, "copies before a refused one did not end")),
                Ok(_) => std::thread::yield_now(),
            }
        };
        self.current = usize::MAX;
        self.end(lane);
    }

    /// Drops a stream, which waits for its copies: of this process's driver however long that takes.
    fn end(&mut self, mut lane: Lane) {
        while self.copier.is_some() {
            match lane.stream.end() {
                Ok(true) => break,
                Ok(false) => std::thread::yield_now(),
                Err(e) => {
                    crate::log!(Error, "{e}");
                    self.unquiet = true;
                    break;
                }
            }
        }
    }

    /// Waits until no copy is in flight any more; gives what they were.
    fn drain(&mut self, link: &super::link::Link, limit_ms: u64) -> Vec<Ending> {
        let until = time::now_ns() + limit_ms * 1_000_000;
        let last = self.flights.back().map_or(0, |f| f.ticket);
        while let Some(lane) = self.lanes.get_mut(self.current)
            && matches!(lane.stream.done(), Ok(done) if done < last)
            && time::now_ns() < until
        {
            std::thread::yield_now();
        }
        std::mem::take(&mut self.lanes).into_iter().for_each(|lane| self.end(lane));
        let flights = std::mem::take(&mut self.flights);
        self.release(link, self.held);
        flights.into_iter().map(|f| f.end).collect()
    }
}

/// Starts an operation that a device's driver has to carry out; `None`: the CPU can.
pub fn start(conn: &mut Conn, domain: &Domain, job: &mut RmaJob, places: &mut Vec<(Remote, u64)>) -> Result<Option<Step>> {
    let far = places.iter().find(|(p, _)| p.path == Paths::IPC).map(|(p, _)| p.site);
    let site = match far {
        None if job.site.is_host() => return Ok(None),
        Some(far) if !job.site.is_host() && far.iface != job.site.iface => return Err(two_vendors(job.site, far)),
        Some(far) if job.site.is_host() => far,
        _ => job.site,
    };
    if places.iter().any(|(p, _)| p.path == Paths::CMA) {
        return if conn.devices.is_idle() { bounce(conn, job, places).map(|()| Some(Step::Done(Ok(())))) } else { Ok(Some(Step::Blocked)) };
    }
    if conn.devices.held.count_ones() as usize + places.len() > FLIGHTS {
        return Ok(Some(Step::Blocked));
    }
    let Some(lane) = conn.devices.lane(site)? else { return Ok(Some(Step::Blocked)) };
    let elsewhere = match conn.devices.copier {
        Some(copier) => Some(domain.elsewhere(job.desc, job.local.as_slice(), copier, site.device)?),
        None => None,
    };
    let local = elsewhere.as_deref().unwrap_or(job.local.as_slice());
    if job.site.is_host() && job.desc != 0 {
        domain.pin_host(job.desc, site);
    }
    if let Some(stream) = conn.devices.after {
        conn.devices.lanes[lane].stream.after(stream)?;
    }
    let mut words = 0;
    // A run of no bytes posts nothing: the operation is over when what was posted before it is.
    let mut outcome = Ok(conn.devices.flights.back().map_or(0, |f| f.ticket));
    let mut done = 0;
    for ((place, offset), r) in places.iter().zip(job.remote()) {
        outcome = outcome.and_then(|last| {
            words |= enter(conn, place)?;
            if place.site.is_host() {
                place.extents().iter().for_each(|extent| extent.pin(site));
            }
            // SAFETY: local pieces are the caller's promise until completion; the remote ones lie in
            // mappings that `places` holds: until the stream's end if this fails, with the flight else.
            unsafe { post(conn, lane, job, local, place, *offset, done, r.len, last) }
        });
        if outcome.is_err() {
            break;
        }
        done += r.len;
    }
    match outcome {
        Ok(ticket) => {
            let events = places.iter().zip(job.remote()).map(|((p, _), r)| (p.key, p.event, r.len)).collect();
            let data = job.has_data().then_some(job.data);
            let (_places, _owned) = (std::mem::take(places), job.owned.take());
            conn.devices.flights.push_back(Flying { ticket, end: job.end, words, dir: job.dir, data, events, _places, _owned });
            Ok(Some(Step::Flying))
        }
        Err(e) => {
            // What was posted before must not run on when the failure is reported: a stream's end waits.
            conn.devices.give_up(lane);
            let link = conn.link.clone();
            conn.devices.release(&link, words);
            Err(e)
        }
    }
}

/// What an endpoint cannot do whose operations call no driver.
pub fn needs_driver(words: &str) -> Error {
    let words = format!("{words}, for which a driver would be called in this process (GDRFAB_OPT_DRIVER_CALLS is 0)");
    Error::coded(errno::EOPNOTSUPP, Code::Path, words)
}

/// Only copies between device memory and device memory can be made elsewhere.
pub fn check_no_driver(job: &RmaJob, places: &[(Remote, u64)]) -> Result<()> {
    let on_devices = places.iter().filter(|(p, _)| p.path == Paths::IPC).count();
    match (job.site.is_host(), on_devices) {
        (true, 0) => Ok(()),
        (false, n) if n == places.len() => Ok(()),
        (true, _) => Err(needs_driver("host memory is copied to or from a peer's device memory")),
        (false, _) => Err(needs_driver("device memory is copied to or from memory that is reached through the host")),
    }
}

fn two_vendors(near: Site, far: Site) -> Error {
    let words = format!("no driver copies between {near} and {far}; forbid the ipc path, or go through host memory");
    Error::coded(errno::EOPNOTSUPP, Code::Path, words)
}

/// Marks a word for a copy in the peer's region and checks that the region is open.
fn enter(conn: &mut Conn, place: &Remote) -> Result<Words> {
    let devices = &mut conn.devices;
    let k = (!devices.held).trailing_zeros() as usize;
    if k >= FLIGHTS {
        return Err(Error::AGAIN);
    }
    // A number of its own in the high half: the peer must tell this copy from the next in the region.
    devices.turn = devices.turn.wrapping_add(1);
    let word = conn.link.mine.flight(k);
    word.store((u64::from(place.index) + 1) | (u64::from(devices.turn) << 32), Ordering::SeqCst);
    gate::light(conn.link.fences);
    if conn.link.table.entry(place.index).gate.load(Ordering::Acquire) != place.generation {
        word.store(0, Ordering::Release);
        conn.remotes.evict(place.key);
        return Err(no_such_key(place.key));
    }
    devices.held |= 1 << k;
    Ok(1 << k)
}

/// Posts the copies of one run; gives the last one's number, or `last` if the run has no bytes.
///
/// # Safety
/// Both sides stay valid until the copies are done.
#[allow(clippy::too_many_arguments)]
unsafe fn post(
    conn: &mut Conn,
    lane: usize,
    job: &RmaJob,
    local: &[Iov],
    place: &Remote,
    offset: u64,
    skip: usize,
    len: usize,
    last: u64,
) -> Result<u64> {
    let (write, mut at) = (job.dir == Dir::Write, skip);
    let how = match (job.site.is_host(), place.site.is_host(), write) {
        (false, false, _) => hmem::Dir::Within,
        (true, _, true) | (false, _, false) if job.site.is_host() != place.site.is_host() => hmem::Dir::ToDevice,
        _ => hmem::Dir::FromDevice,
    };
    let stream = &mut conn.devices.lanes[lane].stream;
    let fault = |e: Error| Error::coded(e.errno, Code::Fault, e.words);
    let mut ticket = last;
    for (there, run) in place.walk(offset, len) {
        still_there(place.site, there.here, there.id).map_err(fault)?;
        let mut here = there.here as u64;
        for (addr, n) in parts(local, at, run) {
            let (to, from) = if write { (here, addr as u64) } else { (addr as u64, here) };
            // SAFETY: handed on.
            ticket = unsafe { stream.post(how, to, from, n) }.map_err(fault)?;
            here += n as u64;
        }
        at += run;
    }
    Ok(ticket)
}

/// Waits for what the caller's stream holds now, for copies that go to no stream of ours; once, then
/// `stream` is 0.
pub fn settle(site: Site, stream: &mut u64) -> Result<()> {
    let theirs = std::mem::take(stream);
    if theirs != 0 && !site.is_host() {
        // The end of a stream waits for all that it holds.
        hmem::get(site.iface)?.stream(site.device)?.after(theirs)?;
    }
    Ok(())
}

/// Between device memory here and a peer's private host memory: through a buffer of ours.
fn bounce(conn: &mut Conn, job: &mut RmaJob, places: &[(Remote, u64)]) -> Result<()> {
    rma::check_alive(conn)?;
    settle(job.site, &mut job.stream_after)?;
    let mut buffer = vec![0u8; job.total.min(BOUNCE)];
    let mut skip = 0;
    for ((place, offset), r) in places.iter().zip(job.remote()) {
        let mut done = 0;
        while done < r.len {
            let n = (r.len - done).min(buffer.len());
            if job.dir == Dir::Write {
                // SAFETY: the buffer holds n bytes.
                unsafe { piece::load(job.site, job.local.as_slice(), skip + done, &mut buffer[..n])? };
            }
            across(conn, job.dir, place, offset + done as u64, &mut buffer[..n])?;
            if job.dir == Dir::Read {
                // SAFETY: the pieces are the promise of whoever posted the job.
                unsafe { piece::store(job.site, job.local.as_slice(), skip + done, &buffer[..n])? };
            }
            done += n;
        }
        skip += r.len;
    }
    let events: Vec<_> = places.iter().zip(job.remote()).map(|((p, _), r)| (p.key, p.event, r.len)).collect();
    rma::notify(conn, job.dir, job.has_data().then_some(job.data), job.total, &events);
    Ok(())
}

fn across(conn: &mut Conn, dir: Dir, place: &Remote, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let busy = conn.link.mine.busy();
    if !conn.gate.enter(busy, &conn.link.table.entry(place.index).gate, place.generation) {
        conn.remotes.evict(place.key);
        return Err(no_such_key(place.key));
    }
    let theirs: Vec<_> = place.walk(offset, buffer.len()).map(|(run, n)| process::piece(run.addr, n)).collect();
    let how = if dir == Dir::Write { Attach::Write } else { Attach::Read };
    // SAFETY: the buffer is ours; the kernel checks the other side.
    let moved = unsafe { attach_copy(conn.link.pid, how, &[process::piece(buffer.as_mut_ptr() as u64, buffer.len())], &theirs) };
    conn.gate.leave(busy);
    moved.map_err(rma::attach_error)
}

/// Copies `total` bytes out of pieces of memory at `site`.
pub fn gather(site: Site, pieces: &[crate::prov::op::Iov], total: usize) -> Result<Box<[u8]>> {
    if site.is_host() {
        return Ok(rma::gather(pieces, total));
    }
    let mut bytes = vec![0u8; total];
    // SAFETY: the pieces are the promise of whoever posted them.
    unsafe { piece::load(site, pieces, 0, &mut bytes)? };
    Ok(bytes.into())
}

/// Ends the copies that are done.
pub fn poll(state: &mut State) -> Result<()> {
    let Some(conn) = state.conn.as_deref_mut() else { return Ok(()) };
    let current = conn.devices.current;
    let done = match conn.devices.lanes.get_mut(current).map(|lane| lane.stream.done()) {
        Some(Ok(done)) => done,
        Some(Err(e)) => return failed(state, e),
        // The stream was given up, and waited for what it held.
        None => match conn.devices.fate.take() {
            None => u64::MAX,
            Some(e) => return failed(state, e),
        },
    };
    while let Some(conn) = state.conn.as_deref_mut()
        && conn.devices.flights.front().is_some_and(|f| f.ticket <= done)
    {
        if !conn.room(Header { words: 3, bytes: ((IOV_LIMIT + 1) * 64) as u16, ..Header::default() })? {
            return Ok(());
        }
        let Some(flown) = conn.devices.flights.pop_front() else { return Ok(()) };
        let link = conn.link.clone();
        conn.devices.release(&link, flown.words);
        rma::notify(conn, flown.dir, flown.data, flown.end.len, &flown.events);
        state.end(&flown.end, Ok(()));
    }
    Ok(())
}

/// The driver gave the stream up: everything on it failed.
#[cold]
fn failed(state: &mut State, e: Error) -> Result<()> {
    let Some(conn) = state.conn.as_deref_mut() else { return Ok(()) };
    let link = conn.link.clone();
    let ends = conn.devices.drain(&link, config::get().close_ms);
    let error = Error::coded(e.errno, Code::Fault, format!("the device's copy failed: {}", e.words));
    for end in ends {
        state.end(&end, Err(error.clone()));
    }
    Ok(())
}

/// The connection is over: takes out the copies that are done, or whose stream failed. A process that copies for this one
/// begins no more.
pub fn take_ended(conn: &mut Conn) -> Vec<Ending> {
    let devices = &mut conn.devices;
    let elsewhere = devices.copier.is_some() && !devices.is_idle();
    let done =
        match devices.lanes.get_mut(devices.current).map(|lane| (lane.stream.done(), elsewhere && matches!(lane.stream.end(), Ok(true)))) {
            Some((Ok(done), false)) => done,
            // The end of a stream waits for what it still holds.
            Some((Err(_), _)) => {
                devices.lanes.clear();
                u64::MAX
            }
            _ => u64::MAX,
        };
    let mut ends = Vec::new();
    while devices.flights.front().is_some_and(|f| f.ticket <= done) {
        let Some(flown) = devices.flights.pop_front() else { break };
        devices.release(&conn.link, flown.words);
        ends.push(flown.end);
    }
    ends
}
