// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Long messages. The sender offers its buffer. Once a receive is posted, the receiving side fetches the bytes (through
//! a mapping, by a device's driver, or by cross-memory attach) or asks for fragments through the ring.

use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Site};
use crate::mr::Paths;
use crate::prov::op::{IOV_LIMIT, Iov, Pieces, parts};
use crate::prov::shm::copy::direct::deliver;
use crate::prov::shm::limits::MAX_MSG;
use crate::prov::shm::peer::import::Import;
use crate::prov::shm::peer::link::Link;
use crate::prov::shm::peer::regions::RemoteRegions;
use crate::prov::shm::state::State;
use crate::prov::shm::state::arrivals::{OfferedMessage, Recv, RendezvousIn, Unexpected};
use crate::prov::shm::state::conn::{Conn, attach_error};
use crate::prov::shm::state::in_flight::Flight;
use crate::prov::shm::state::job::{SendJob, Step};
use crate::prov::shm::wire::layout::SegmentRef;
use crate::prov::shm::wire::message::{STATUS_SEND_FRAGMENTS, broken, kind, mark, protocol, slot_word, status_of, unpack_slot};
use crate::sync::consumer::Message;
use crate::sync::ring::Header;
use crate::sys::copy;
use crate::sys::space::{Attach, Piece, Reach, piece};

/// Words of an offer in front of the pieces, which take two words each.
const OFFER_WORDS: usize = 6;

impl State {
    /// Takes the offer of a long message.
    pub fn on_offer(&mut self, message: &Message<'_, SegmentRef>) -> Result<()> {
        let (slot, generation) = unpack_slot(message.word(0))?;
        let (total, count) = (message.word(1), message.word(2) as usize);
        let sane = total <= MAX_MSG as u64 && (1..=IOV_LIMIT).contains(&count) && message.header.words as usize == OFFER_WORDS + 2 * count;
        if !sane {
            return Err(protocol("the peer offered a message with invalid values"));
        }
        let word = |i| message.word(OFFER_WORDS + i);
        let pieces: Vec<_> = (0..count).map(|k| (word(2 * k), word(2 * k + 1) as usize)).collect();
        if pieces.iter().try_fold(0usize, |sum, p| sum.checked_add(p.1)) != Some(total as usize) {
            return Err(protocol("the pieces of an offered message do not sum to its length"));
        }
        let offered = OfferedMessage {
            slot,
            generation,
            total: total as usize,
            data: (message.header.flags & mark::DATA != 0).then(|| message.word(3)),
            file: message.word(4),
            file_offset: message.word(5),
            on_device: message.header.flags & mark::DEVICE != 0,
            pieces,
        };
        if self.unexpected.is_empty() && !self.recvs.is_empty() {
            return self.accept_offer(offered);
        }
        self.check_window()?;
        self.unexpected.push_back(Unexpected::Rendezvous(offered));
        self.stats.unexpected += 1;
        Ok(())
    }

    /// Fetches an offered message into the first receive, or asks for fragments. If pages of the peer's buffer are not
    /// present yet, puts the message first among the unexpected messages, to try again later.
    pub fn accept_offer(&mut self, offered: OfferedMessage) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let Some(Some(first)) = self.recvs.first(1).first() else { return Ok(()) };
        if conn.rendezvous_in.get(offered.slot as usize).is_some_and(Option::is_some) {
            return Err(protocol("the peer offered a message in a slot that is still in use"));
        }
        conn.remotes.map_for(first.site);
        let n = offered.total.min(first.room);
        let source = find(&mut conn.remotes, &conn.link, &offered, first.site, n);
        conn.offer_waits = match &source {
            Source::Attached(from) => !conn.reach.has(Attach::Read, from.iter().map(|p| (p.iov_base as u64, p.iov_len))),
            _ => false,
        };
        if conn.offer_waits {
            self.unexpected.push_front(Unexpected::Rendezvous(offered));
            return Ok(());
        }
        let peer = conn.link.peer.clone();
        let slot = peer.slot(offered.slot as usize);
        if slot.claim_back(offered.generation).is_none() {
            // The sender has cancelled the message, so the receive stays for the next one.
            self.count_match();
            return Ok(());
        }
        let Some(mut recv) = self.recvs.pop_front() else { return Ok(()) };
        recv.ticket = self.bind.matched(false);
        let mut ended = Ok(());
        match fetch(&conn.reach, source, &recv, n) {
            Fetched::Done => {
                self.fetched = self.fetched.saturating_add(n);
                slot.report(offered.generation, 0, 1);
                conn.link.nudge();
                self.received(&recv, n, offered.total - n, offered.data);
            }
            Fetched::Failed(e) => {
                slot.report(offered.generation, status_of(Code::Fault), 1);
                conn.link.nudge();
                if e.code == Code::PeerGone {
                    ended = Err(e.clone());
                }
                self.abandon(&recv, e);
            }
            Fetched::Impossible => {
                recv.ticket = recv.ticket.or_else(|| self.bind.matched(true));
                let incoming = RendezvousIn { generation: offered.generation, recv, total: offered.total, got: 0, data: offered.data };
                let at = offered.slot as usize;
                if conn.rendezvous_in.len() <= at {
                    conn.rendezvous_in.resize_with(at + 1, || None);
                }
                conn.rendezvous_in[at] = Some(incoming);
                slot.report(offered.generation, STATUS_SEND_FRAGMENTS, 0);
                conn.link.nudge();
            }
        }
        self.count_match();
        ended
    }

    /// Takes a fragment of a long message.
    pub fn on_fragment(&mut self, message: &Message<'_, SegmentRef>) -> Result<()> {
        let (index, generation) = unpack_slot(message.word(0))?;
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let Some(place) = conn.rendezvous_in.get_mut(index as usize) else { return Ok(()) };
        let Some(incoming) = place.as_mut().filter(|r| r.generation == generation) else { return Ok(()) };
        if message.header.flags & mark::LAST != 0 {
            if let Some(ended) = place.take() {
                self.abandon(
                    &ended.recv,
                    Error::coded(errno::ECANCELED, Code::Canceled, "the sender cancelled the message before it was complete"),
                );
            }
            return Ok(());
        }
        let (at, len) = (message.word(1), message.header.bytes as usize);
        if at != incoming.got as u64 || incoming.total - incoming.got < len {
            return Err(protocol("the peer sent a fragment of a message out of order"));
        }
        let take = incoming.recv.room.saturating_sub(incoming.got).min(len);
        let placed = deliver(message, incoming.recv.site, incoming.recv.pieces.as_slice(), incoming.got, take);
        incoming.got += len;
        let complete = incoming.got == incoming.total;
        if let Err(e) = placed {
            let Some(ended) = place.take() else { return Ok(()) };
            conn.link.peer.slot(index as usize).report(generation, status_of(Code::Fault), 1);
            conn.link.nudge();
            self.abandon(&ended.recv, Error::coded(e.errno, Code::Fault, e.words));
            return Ok(());
        }
        if complete && let Some(done) = place.take() {
            conn.link.peer.slot(index as usize).report(generation, 0, 1);
            conn.link.nudge();
            let n = done.total.min(done.recv.room);
            self.received(&done.recv, n, done.total - n, done.data);
        }
        Ok(())
    }
}

/// Offers a long message to the receiver. `place`: the file and the offset at which the receiver can map the buffer;
/// file 0: the receiver cannot map it.
pub fn offer(conn: &mut Conn, job: &mut SendJob, has_data: bool, place: (u64, u64)) -> Result<Step> {
    let count = job.pieces.as_slice().len();
    let header =
        Header { kind: kind::RENDEZVOUS, flags: if has_data { mark::DATA } else { 0 }, words: (OFFER_WORDS + 2 * count) as u8, bytes: 0 };
    if !conn.room(header)? {
        return Ok(Step::Blocked);
    }
    let Some((slot, generation)) = conn.slots.reserve() else { return Ok(Step::Blocked) };
    if let Err(e) = job.copy_injected() {
        conn.slots.release(slot);
        return Err(e);
    }
    let iov = job.pieces.as_slice();
    let (file, file_offset) = place;
    conn.link.mine.slot(slot as usize).open(generation, 1);
    let mut words = vec![slot_word(slot, generation), job.total as u64, iov.len() as u64, job.data, file, file_offset];
    words.extend(iov.iter().flat_map(|v| [v.addr() as u64, v.len() as u64]));
    let device = if job.site.is_host() { 0 } else { mark::DEVICE };
    conn.put_words(kind::RENDEZVOUS, header.flags | device, &words);
    conn.sent += 1;
    conn.slots.launch(
        slot,
        Flight::Rendezvous { end: job.end, pieces: job.pieces.clone(), site: job.site, _owned: job.owned.take(), sent: None },
    );
    Ok(Step::InFlight)
}

/// The source from which the receiver gets the bytes of an offered message.
enum Source<'a> {
    /// A mapping in this process, in which the bytes begin at this address.
    Mapped(&'a Import, usize),
    /// The peer's memory, by cross-memory attach.
    Attached(Vec<Piece>),
    /// The sender must send fragments.
    Nowhere,
}

/// Finds the source of the first `n` bytes of an offered message, which go to memory at `to`.
fn find<'a>(remotes: &'a mut RemoteRegions, link: &Link, offered: &OfferedMessage, to: Site, n: usize) -> Source<'a> {
    let (path, allowed) = (if offered.on_device { Paths::IPC } else { Paths::DIRECT }, remotes.allowed);
    if offered.file != 0
        && allowed.contains(path)
        && let Some((import, from)) = remotes.mapped(link, offered.file, offered.file_offset, offered.total as u64)
    {
        return Source::Mapped(import, from);
    }
    if offered.on_device || !to.is_host() || link.why_no_cma().is_some() || !allowed.contains(Paths::CMA) {
        return Source::Nowhere;
    }
    let mut left = n;
    let run = |&(addr, len): &(u64, usize)| {
        let run = len.min(left);
        left -= run;
        piece(addr, run)
    };
    Source::Attached(offered.pieces.iter().map(run).collect())
}

enum Fetched {
    Done,
    Failed(Error),
    /// This side cannot fetch the bytes, and must ask for fragments.
    Impossible,
}

/// Fetches the first `n` bytes of an offered message from `source` into the receive.
fn fetch(reach: &Reach, source: Source<'_>, recv: &Recv, n: usize) -> Fetched {
    match source {
        Source::Mapped(import, from) if !import.site().is_host() || !recv.site.is_host() => {
            fetch_by_driver(recv, n, from as u64, import.site())
        }
        Source::Mapped(_held, from) => {
            let mut at = 0;
            for to in parts(recv.pieces.as_slice(), 0, n) {
                // SAFETY: the mapping, borrowed for the call, covers the offered bytes; `to` is memory of the receive, as its caller
                // promised.
                unsafe { copy::copy(to.as_ptr(), (from + at) as *const u8, to.len(), config::get().debug.nt_threshold) };
                at += to.len();
            }
            Fetched::Done
        }
        Source::Attached(_) if n == 0 => Fetched::Done,
        Source::Attached(from) => {
            let to: Vec<Iov> = parts(recv.pieces.as_slice(), 0, n).collect();
            match reach.copy(Attach::Read, &to, &from) {
                Ok(()) => Fetched::Done,
                Err(e) if e.code == Code::Path => Fetched::Impossible,
                Err(e) => Fetched::Failed(attach_error(e)),
            }
        }
        Source::Nowhere => Fetched::Impossible,
    }
}

/// Fetches the bytes by a device's driver, with one blocking copy for each piece. On one side at least the memory is
/// device memory.
fn fetch_by_driver(recv: &Recv, n: usize, from: u64, site: Site) -> Fetched {
    // A mapping for one device is in reach of the vendor's other devices, but the receive's memory need not be. So the
    // receive's device copies.
    let of = if recv.site.is_host() { site } else { recv.site };
    if !site.is_host() && !recv.site.is_host() && site.iface != recv.site.iface {
        return Fetched::Impossible;
    }
    let dir = match (site.is_host(), recv.site.is_host()) {
        (true, _) => hmem::Dir::ToDevice,
        (_, true) => hmem::Dir::FromDevice,
        _ => hmem::Dir::Within,
    };
    let up = match hmem::get(of.iface) {
        Ok(up) => up,
        Err(e) => return Fetched::Failed(e),
    };
    let mut at = 0u64;
    for to in parts(recv.pieces.as_slice(), 0, n) {
        // SAFETY: the mapping covers the offered bytes; `to` is memory of the receive, as its caller promised.
        if let Err(e) = unsafe { up.copy(of.device, dir, to.addr() as u64, from + at, to.len()) } {
            return Fetched::Failed(Error::coded(e.errno, Code::Fault, e.words));
        }
        at += to.len() as u64;
    }
    Fetched::Done
}

/// Puts fragments of an offered message into the ring, from byte `sent` on; returns the new count of sent bytes.
pub fn send_fragments(conn: &mut Conn, slot: u16, pieces: &Pieces, total: usize, mut sent: usize) -> Result<usize> {
    let word = slot_word(slot, conn.slots.generation[slot as usize]);
    while sent < total || total == 0 {
        let n = (total - sent).min(conn.fragment);
        let header = Header { kind: kind::FRAGMENT, words: 2, bytes: n as u16, flags: 0 };
        if !conn.tx.room(header.lines()).map_err(broken)? {
            break;
        }
        let mut list = [Iov::EMPTY; IOV_LIMIT];
        let mut used = 0;
        for part in parts(pieces.as_slice(), sent, n) {
            list[used] = part;
            used += 1;
        }
        conn.tx.write(header, &[word, sent as u64], &list[..used]);
        sent += n;
        if total == 0 {
            break;
        }
    }
    conn.link.nudge();
    Ok(sent)
}
