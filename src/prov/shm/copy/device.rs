// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that a device's driver carries out. While the caller goes on, the driver copies between local memory and
//! a mapping of the peer's memory; on either side the memory may be host or device memory. `start` and `start_list` put
//! copies on a stream; `poll` ends the operations whose copies are done.

use super::direct::{notices, notify};
use crate::config;
use crate::error::{Code, Error, Result};
use crate::hmem::{self, Site, StreamCopy};
use crate::mr::Paths;
use crate::prov::bind::Ending;
use crate::prov::list::{List, Native, Run};
use crate::prov::op::{Dir, IOV_LIMIT, Iov, parts};
use crate::prov::shm::domain::Domain;
use crate::prov::shm::peer::import::check_identity;
use crate::prov::shm::peer::regions::{RemoteRegion, no_such_key};
use crate::prov::shm::state::State;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::device_streams::{DeviceCopy, FlightBits};
use crate::prov::shm::state::job::{RmaJob, Step, needs_driver};
use crate::prov::shm::wire::layout::FLIGHTS;
use crate::sync::gate;
use crate::sync::primitive::Ordering;

/// Starts an operation on all its regions by a device's driver. `None`: the CPU can carry it out.
pub fn start(conn: &mut Conn, domain: &Domain, job: &mut RmaJob, regions: &mut Vec<(RemoteRegion, u64)>) -> Result<Option<Step>> {
    let remote = regions.iter().find(|(p, _)| p.path == Paths::IPC).map(|(p, _)| p.site);
    let site = match remote {
        None if job.site.is_host() => return Ok(None),
        Some(remote) if job.site.is_host() => remote,
        _ => job.site,
    };
    if conn.devices.held.count_ones() as usize + regions.len() > FLIGHTS {
        return Ok(Some(Step::Blocked));
    }
    let Some(at) = conn.devices.stream_for(site)? else { return Ok(Some(Step::Blocked)) };
    let elsewhere = match conn.devices.copier {
        Some(copier) => Some(domain.pieces_in_copier(job.desc, job.local.as_slice(), copier, site.device)?),
        None => None,
    };
    let local = elsewhere.as_deref().unwrap_or(job.local.as_slice());
    if job.site.is_host() && job.desc != 0 {
        domain.pin_host(job.desc, site);
    }
    if let Some(stream) = conn.devices.after {
        conn.devices.streams[at].stream.after(stream)?;
    }
    let mut words = 0;
    // An operation without bytes posts no copy, and is over when the copies before it are.
    let mut outcome = Ok(conn.devices.flights.back().map_or(0, |f| f.ticket));
    let mut done = 0;
    for ((region, offset), r) in regions.iter().zip(job.remote()) {
        outcome = outcome.and_then(|last| {
            words |= enter(conn, region)?;
            if region.site.is_host() {
                region.extents().iter().for_each(|extent| extent.pin(site));
            }
            // SAFETY: the caller promised by `Iov::new` that local pieces are memory until the completion. The remote ones lie in
            // mappings that `regions` holds: until the stream's end if this fails, else as long as the copy is in flight.
            unsafe { post(conn, at, job, local, region, *offset, done, r.len, last) }
        });
        if outcome.is_err() {
            break;
        }
        done += r.len;
    }
    match outcome {
        Ok(ticket) => {
            let events = regions.iter().zip(job.remote()).map(|((p, _), r)| (p.key, p.event, r.len)).collect();
            let data = job.has_data().then_some(job.data);
            let (_places, _owned) = (std::mem::take(regions), job.owned.take());
            conn.devices.flights.push_back(DeviceCopy { ticket, end: job.end, words, dir: job.dir, data, events, _places, _owned });
            Ok(Some(Step::InFlight))
        }
        Err(e) => {
            // No copy of this operation may run on after the failure was reported, and giving up the stream waits for
            // all copies.
            conn.devices.give_up(at);
            let link = conn.link.clone();
            conn.devices.release(&link, words);
            Err(e)
        }
    }
}

/// Starts a list by a device's driver, after the copies that the stream holds. The caller has checked every block.
/// `name` is the name that an earlier call has given the same list on the stream.
#[allow(clippy::too_many_arguments)]
pub fn start_list(
    conn: &mut Conn,
    domain: &Domain,
    local: Site,
    dir: Dir,
    list: &List,
    name: Option<u64>,
    mut regions: Vec<RemoteRegion>,
    end: Ending,
    data: Option<u64>,
    events: Vec<(u64, bool, usize)>,
) -> Result<Native> {
    let site = if local.is_host() { regions[0].site } else { local };
    if conn.devices.held.count_ones() as usize + regions.len() > FLIGHTS {
        return Ok(Native::Blocked);
    }
    let Some(at) = conn.devices.stream_for(site)? else { return Ok(Native::Blocked) };
    if local.is_host() {
        list.pairs.iter().filter(|p| p.desc != 0).for_each(|p| domain.pin_host(p.desc, site));
    }
    if let Some(stream) = conn.devices.after {
        conn.devices.streams[at].stream.after(stream)?;
    }
    let (mut words, mut kept) = (0, Vec::with_capacity(regions.len()));
    let mut failed = None;
    for (i, region) in regions.iter().enumerate() {
        let ready = enter(conn, region).and_then(|word| {
            words |= word;
            if region.site.is_host() {
                region.extents().iter().for_each(|extent| extent.pin(site));
            }
            let all = region.walk(0, region.len as usize);
            all.map(|(there, _)| there).try_for_each(|there| check_identity(region.site, there.here, there.id))
        });
        if let Err(e) = ready {
            let block = list.runs.iter().find(|r| r.pair as usize == i).map_or(0, |r| r.first as usize);
            failed = Some((block, e));
            break;
        }
    }
    let link = conn.link.clone();
    if let Some((block, e)) = failed {
        conn.devices.release(&link, words);
        return Ok(Native::Failed(block, e));
    }
    // SAFETY: the C caller promised that local blocks stay until the completion. The remote ones lie in mappings that the copy in
    // flight holds, or `regions` until the stream's end.
    match unsafe { post_blocks(conn, domain, at, local, dir, list, name, &regions) } {
        Ok(ticket) => {
            kept.extend(regions.drain(..).map(|p| (p, 0)));
            conn.devices.flights.push_back(DeviceCopy { ticket, end, words, dir, data, events, _places: kept, _owned: None });
            Ok(Native::Flying)
        }
        Err((block, e)) => {
            // No copy of this list may run on after the failure was reported, and giving up the stream waits for all
            // copies.
            conn.devices.give_up(at);
            conn.devices.release(&link, words);
            Ok(Native::Failed(block, Error::coded(e.errno, Code::Fault, e.words)))
        }
    }
}

/// Most copies of a list that are given to the stream in one call.
const COPIES: usize = 64 << 10;
/// Most entries of the cache `DeviceStreams::reached`.
const REACHED_MOST: usize = 1024;

/// Posts the blocks of a list; returns the ticket of the last copy.
///
/// # Safety
/// Local and remote memory stay valid until the copies are done.
#[allow(clippy::too_many_arguments)]
unsafe fn post_blocks(
    conn: &mut Conn,
    domain: &Domain,
    at: usize,
    local: Site,
    dir: Dir,
    list: &List,
    name: Option<u64>,
    regions: &[RemoteRegion],
) -> std::result::Result<u64, (usize, Error)> {
    if let Some(name) = name
        && list.pairs.iter().all(|p| domain.local_pieces(p.desc).is_ok())
        && regions.iter().all(|p| p.one.stays_reachable())
    {
        // SAFETY: the caller promises that both sides stay. Blocks and regions are those that were posted under the name.
        let again = unsafe { conn.devices.streams[at].stream.post_again(name) };
        if let Some(ticket) = again.map_err(|e| failed_block(&list.runs, e))? {
            return Ok(ticket);
        }
    }
    let write = dir == Dir::Write;
    let how = match (local.is_host(), regions[0].site.is_host(), write) {
        (false, false, _) => hmem::Dir::Within,
        (true, _, true) | (false, _, false) => hmem::Dir::ToDevice,
        _ => hmem::Dir::FromDevice,
    };
    let reached = are_reached(conn, domain, at, local, list, regions);
    let name = if reached && list.runs.len() <= COPIES { conn.devices.keep(list.number, dir, regions) } else { 0 };
    let stream = &mut conn.devices.streams[at].stream;
    let mut ticket = conn.devices.flights.back().map_or(0, |f| f.ticket);
    let mut copies: Vec<StreamCopy> = Vec::with_capacity(list.runs.len().min(COPIES));
    let mut first = 0;
    for (i, run) in list.runs.iter().enumerate() {
        let region = &regions[run.pair as usize];
        let mut here = run.buf() as u64;
        if region.more.is_none() {
            let there = region.one.here() as u64 + (run.addr - region.base);
            let (to, from) = if write { (there, here) } else { (here, there) };
            copies.push(StreamCopy { dir: how, to, from, len: run.len() });
        } else {
            for (there, n) in region.walk(run.addr - region.base, run.len()) {
                let (to, from) = if write { (there.here as u64, here) } else { (here, there.here as u64) };
                copies.push(StreamCopy { dir: how, to, from, len: n });
                here += n as u64;
            }
        }
        if copies.len() >= COPIES || i + 1 == list.runs.len() {
            // SAFETY: the caller promises that both sides of each copy stay until it is done.
            ticket = unsafe { stream.post_list(&copies, reached, name) }.map_err(|e| failed_block(&list.runs[first..=i], e))?;
            copies.clear();
            first = i + 1;
        }
    }
    Ok(ticket)
}

/// The error of blocks that a driver refused in one call, with the first of them: the driver does not tell which block
/// it refused.
fn failed_block(runs: &[Run], e: Error) -> (usize, Error) {
    match runs {
        [first, .., last] => (first.first as usize, e.context(format_args!("one of the blocks from this one to block {}", last.first))),
        _ => (runs.first().map_or(0, |r| r.first as usize), e),
    }
}

/// True if a kernel of the stream's device can access all memory of both sides.
fn are_reached(conn: &mut Conn, domain: &Domain, at: usize, local: Site, list: &List, regions: &[RemoteRegion]) -> bool {
    let site = conn.devices.streams[at].site;
    let Ok(up) = hmem::get(site.iface) else { return false };
    let known = &mut conn.devices.reached;
    if known.len() > REACHED_MOST {
        known.clear();
    }
    // Generations and descriptors are never used again for other memory, so cached answers stay true. A peer's region may be mapped
    // elsewhere later, so its mappings are part of the cache's key.
    let theirs = regions.iter().all(|p| {
        let ask = || p.walk(0, p.len as usize).all(|(there, n)| up.reaches(site.device, there.here as u64, n as u64));
        p.extents().iter().all(|e| e.stays_reachable())
            && *known.entry((site.device, p.key, p.generation, p.mapping_hash())).or_insert_with(ask)
    });
    theirs
        && list.pairs.iter().enumerate().all(|(i, pair)| {
            let Ok(found) = domain.local_pieces(pair.desc) else { return false };
            let inside = !local.is_host() || list.runs.iter().filter(|r| r.pair as usize == i).all(|r| found.holds(r.buf(), r.len()));
            let kept = || !local.is_host() || domain.keeps_pinned(pair.desc, site);
            let ask = || kept() && found.pieces().all(|(addr, len)| up.reaches(site.device, addr as u64, len as u64));
            inside && *known.entry((site.device, pair.desc, 0, 0)).or_insert_with(ask)
        })
}

/// Checks that the operation needs no driver in this process: either no device memory takes part, or all memory is
/// device memory, which the copier process can copy.
pub fn check_no_driver(job: &RmaJob, regions: &[(RemoteRegion, u64)]) -> Result<()> {
    let on_devices = regions.iter().filter(|(p, _)| p.path == Paths::IPC).count();
    match (job.site.is_host(), on_devices) {
        (true, 0) => Ok(()),
        (false, n) if n == regions.len() => Ok(()),
        (true, _) => Err(needs_driver("copying between host memory and a peer's device memory")),
        (false, _) => Err(needs_driver("copying between device memory and a region that is not mapped as device memory")),
    }
}

/// Takes a flight word of the segment for a copy in the peer's region, and checks that the region is still open.
fn enter(conn: &mut Conn, region: &RemoteRegion) -> Result<FlightBits> {
    let devices = &mut conn.devices;
    let k = (!devices.held).trailing_zeros() as usize;
    if k >= FLIGHTS {
        return Err(Error::AGAIN);
    }
    // A number in the high half lets the peer tell this copy from the next one in the same region.
    devices.turn = devices.turn.wrapping_add(1);
    let word = conn.link.mine.flight(k);
    word.store((u64::from(region.index) + 1) | (u64::from(devices.turn) << 32), Ordering::SeqCst);
    gate::light(conn.link.fences);
    if conn.link.table.entry(region.index).gate.load(Ordering::Acquire) != region.generation {
        word.store(0, Ordering::Release);
        conn.remotes.evict(region.key);
        return Err(no_such_key(region.key));
    }
    devices.held |= 1 << k;
    Ok(1 << k)
}

/// Posts the copies of one region; returns the ticket of the last copy, or `last` if there are no bytes.
///
/// # Safety
/// Local and remote memory stay valid until the copies are done.
#[allow(clippy::too_many_arguments)]
unsafe fn post(
    conn: &mut Conn,
    at: usize,
    job: &RmaJob,
    local: &[Iov],
    region: &RemoteRegion,
    offset: u64,
    skip: usize,
    len: usize,
    last: u64,
) -> Result<u64> {
    let (write, mut done) = (job.dir == Dir::Write, skip);
    let how = match (job.site.is_host(), region.site.is_host(), write) {
        (false, false, _) => hmem::Dir::Within,
        (true, _, true) | (false, _, false) if job.site.is_host() != region.site.is_host() => hmem::Dir::ToDevice,
        _ => hmem::Dir::FromDevice,
    };
    let stream = &mut conn.devices.streams[at].stream;
    let fault = |e: Error| Error::coded(e.errno, Code::Fault, e.words);
    let mut ticket = last;
    for (there, run) in region.walk(offset, len) {
        check_identity(region.site, there.here, there.id).map_err(fault)?;
        let mut here = there.here as u64;
        for part in parts(local, done, run) {
            let (to, from) = if write { (here, part.addr() as u64) } else { (part.addr() as u64, here) };
            // SAFETY: the caller promises that local parts are memory until the operation is over, and that the peer's mapping stays
            // as long.
            ticket = unsafe { stream.post(how, to, from, part.len()) }.map_err(fault)?;
            here += part.len() as u64;
        }
        done += run;
    }
    Ok(ticket)
}

/// Ends the operations whose copies are done.
pub fn poll(state: &mut State) -> Result<()> {
    let Some(conn) = state.conn.as_deref_mut() else { return Ok(()) };
    let current = conn.devices.current;
    let done = match conn.devices.streams.get_mut(current).map(|of| of.stream.done()) {
        Some(Ok(done)) => done,
        Some(Err(e)) => return failed(state, e),
        // The stream was dropped, and the drop has waited for its copies.
        None => match conn.devices.stream_error.take() {
            None => u64::MAX,
            Some(e) => return failed(state, e),
        },
    };
    while let Some(conn) = state.conn.as_deref_mut()
        && conn.devices.flights.front().is_some_and(|f| f.ticket <= done)
    {
        if !conn.room(notices(IOV_LIMIT))? {
            return Ok(());
        }
        let Some(copy) = conn.devices.flights.pop_front() else { return Ok(()) };
        let link = conn.link.clone();
        conn.devices.release(&link, copy.words);
        notify(conn, copy.dir, copy.data, copy.end.len, &copy.events);
        state.end(&copy.end, Ok(()));
    }
    Ok(())
}

/// Fails all operations in flight, after their stream has failed.
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
