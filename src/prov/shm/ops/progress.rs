// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Progress of an endpoint. One turn takes messages from the ring, reads reports in the slots, and goes on with
//! operations that wait. Some turns also read the control socket and check deadlines.

use super::{recv, rendezvous, staged};
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::prov::bind::Ending;
use crate::prov::op::{IOV_LIMIT, Iov, Pieces};
use crate::prov::shm::connect::{cm, leaving};
use crate::prov::shm::copy::direct::notices;
use crate::prov::shm::copy::{coop, coop_list, device};
use crate::prov::shm::domain::Domain;
use crate::prov::shm::limits::{BUDGET, FETCH_BYTES};
use crate::prov::shm::state::in_flight::{CopyWork, Flight, OfferedWork};
use crate::prov::shm::state::job::{Job, Step, gather};
use crate::prov::shm::state::{Phase, State};
use crate::prov::shm::wire::frame::{self, Frame};
use crate::prov::shm::wire::layout::SegmentRef;
use crate::prov::shm::wire::message::{STATUS_SEND_FRAGMENTS, broken, error_of, kind, mark, protocol};
use crate::sync::consumer::Message;
use crate::sys::{cancel, socket, time};
use std::os::fd::AsFd;

/// Ticks after which a turn starts no more waiting operations.
const BACKLOG_TICKS: u64 = 2_000_000;
/// Least ticks between two looks at the control socket that are not forced.
const CONTROL_TICKS: u64 = 100_000;
/// If the last look at the control socket is more than these ticks ago, a look also asks if the peer's process lives.
const SELDOM_TICKS: u64 = 2_000_000;

impl State {
    /// One turn of progress. `force`: also looks at the control socket, whenever the last look was.
    #[inline]
    pub fn progress(&mut self, domain: &Domain, force: bool) {
        if matches!(self.phase, Phase::Connected)
            && let Err(e) = self.turn(domain)
        {
            self.down(domain, e);
        }
        self.polls = self.polls.wrapping_add(1);
        if force || (self.polls & 15 == 0 && time::ticks().wrapping_sub(self.last_control) > CONTROL_TICKS) {
            self.control(domain, force);
        }
    }

    /// The part of a turn that a live connection has. `Err`: the connection ends with this error.
    #[inline]
    fn turn(&mut self, domain: &Domain) -> Result<()> {
        if self.rx.as_ref().is_some_and(|rx| !rx.is_empty()) {
            self.drain(domain, self.taking)?;
        }
        if !self.unexpected.is_empty() && !self.recvs.is_empty() {
            self.match_unexpected(domain)?;
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        if !conn.slots.active.is_empty() {
            self.poll_slots()?;
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        if !conn.devices.is_idle() {
            device::poll(self)?;
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        if let Some(mut helping) = conn.helping.take() {
            let goes_on = match helping.what {
                OfferedWork::One { .. } => coop::help(conn, domain, &mut helping),
                OfferedWork::List { .. } => coop_list::help(conn, domain, &mut helping),
            };
            conn.helping = goes_on.then_some(helping);
            if let Some(why) = conn.reach.end() {
                return Err(why.clone());
            }
        }
        if !conn.reads_out.is_empty() {
            staged::pump_reads(conn, domain)?;
        }
        if !conn.backlog.is_empty() {
            self.pump_backlog(domain)?;
        }
        Ok(())
    }

    /// Takes messages from the ring. With `up_to_parcels`, stops at the first parcel, which stays in the ring.
    fn drain(&mut self, domain: &Domain, up_to_parcels: bool) -> Result<()> {
        if self.is_fast_receiver() {
            self.queue_fast(BUDGET);
            if self.rx.as_ref().is_none_or(|rx| rx.is_empty()) {
                return Ok(());
            }
        }
        let Some(mut rx) = self.rx.take() else { return Ok(()) };
        let mut result = Ok(());
        self.fetched = 0;
        for _ in 0..BUDGET {
            let message = match rx.front() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(e) => {
                    result = Err(broken(e));
                    break;
                }
            };
            let header = message.header;
            if header.kind == kind::PARCEL && up_to_parcels {
                break;
            }
            let gives_entry = matches!(header.kind, kind::SEND | kind::RENDEZVOUS | kind::FRAGMENT) || header.flags & mark::DATA != 0;
            if gives_entry && self.bind.rx.as_ref().is_some_and(|q| !q.has_room()) {
                break;
            }
            result = self.dispatch(domain, &message);
            message.finish();
            if result.is_err() || self.conn.is_none() || self.fetched >= FETCH_BYTES {
                break;
            }
        }
        self.rx = self.conn.is_some().then_some(rx);
        result
    }

    #[inline]
    fn dispatch(&mut self, domain: &Domain, message: &Message<'_, SegmentRef>) -> Result<()> {
        match message.header.kind {
            kind::SEND => self.on_send(message),
            kind::PARCEL => self.on_parcel(message),
            kind::RENDEZVOUS => self.on_offer(message),
            kind::FRAGMENT => self.on_fragment(message),
            kind::NOTIFY => self.on_notify(domain, message),
            kind::COOP | kind::COOP_LIST => {
                let helps = self.options.coop.is_on() && !config::get().debug.no_coop;
                let Some(conn) = self.conn.as_deref_mut().filter(|_| helps) else { return Ok(()) };
                let flags = message.header.flags;
                // The peer offers one operation at a time, so with a new offer the one before is over.
                conn.helping = None;
                match message.header.kind {
                    kind::COOP => coop::join(conn, flags, std::array::from_fn(|i| message.word(i))),
                    _ => coop_list::join(conn, flags, std::array::from_fn(|i| message.word(i))),
                }
            }
            kind::STAGED_WRITE => self.on_staged_write(domain, message),
            kind::STAGED_READ => self.on_staged_read(message),
            kind::STAGED_DATA => self.on_staged_data(message),
            kind::ATOMIC => self.on_atomic(domain, message),
            _ => Err(protocol("the peer sent a ring message of an unknown kind")),
        }
    }

    /// Takes the notice of a peer's write: counts the write, and reports its remote CQ data.
    fn on_notify(&mut self, domain: &Domain, message: &Message<'_, SegmentRef>) -> Result<()> {
        if message.header.flags & mark::EVENT != 0
            && let Some(counter) = domain.regions.lock().counter(message.word(0))
        {
            counter.add(1);
        }
        if message.header.flags & mark::DATA != 0 {
            self.bind.remote_data(message.word(1) as usize, message.word(2));
        }
        Ok(())
    }

    /// Ends the operations on which the peer has reported, and sends the fragments for which it has asked.
    fn poll_slots(&mut self) -> Result<()> {
        let mut k = 0;
        // Staged operations end in the order of posting, even if their reports come in another order.
        let mut staged_waits = false;
        loop {
            let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
            let Some(&index) = conn.slots.active.get(k) else { return Ok(()) };
            let before = conn.slots.active.len();
            let report = conn.link.mine.slot(index as usize).reported(conn.slots.generation[index as usize]);
            match conn.slots.flight_mut(index) {
                Some(Flight::Rendezvous { pieces, end, sent, site, _owned, .. })
                    if report.chunks == 0 && report.status == STATUS_SEND_FRAGMENTS =>
                {
                    if !site.is_host() {
                        match gather(*site, pieces.as_slice(), end.len) {
                            Ok(bytes) => {
                                // SAFETY: the bytes stay allocated as long as the operation is in flight.
                                *pieces = Pieces::One(unsafe { Iov::of(&bytes) });
                                (*_owned, *site) = (Some(bytes), Site::HOST);
                            }
                            Err(e) => {
                                // The receiver must be told that no more fragments come. If the ring has no room for
                                // that message, the next turn tries again.
                                if leaving::give_up(conn, index) {
                                    self.land(index, Err(e));
                                }
                                k += 1;
                                continue;
                            }
                        }
                    }
                    let (pieces, total, from) = (pieces.clone(), end.len, sent.unwrap_or(0));
                    if sent.is_none() || from < total {
                        let now = rendezvous::send_fragments(conn, index, &pieces, total, from)?;
                        if let Some(Flight::Rendezvous { sent, .. }) = conn.slots.flight_mut(index) {
                            *sent = Some(now);
                        }
                    }
                }
                Some(Flight::Coop(shared)) if report.status != 0 || report.chunks >= shared.owed() => {
                    self.land_shared(index, report.status)?;
                }
                Some(Flight::Coop(_)) => {}
                Some(Flight::Read { want, got, .. }) => {
                    let over = got == want && *want > 0 || report.chunks > 0 && (report.status != 0 || *want == 0);
                    if over && !staged_waits {
                        self.land(index, error_of(report.status));
                    } else {
                        staged_waits = true;
                    }
                }
                Some(Flight::Ack { staged: Some(_), .. }) => {
                    if report.chunks > 0 && !staged_waits {
                        self.land(index, error_of(report.status));
                    } else {
                        staged_waits = true;
                    }
                }
                Some(_) if report.chunks > 0 => self.land(index, error_of(report.status)),
                _ => {}
            }
            if self.conn.as_ref().is_some_and(|c| c.slots.active.len() == before) {
                k += 1;
            }
        }
    }

    /// Ends a shared operation after the helper's report, if the ring has room for the notices.
    fn land_shared(&mut self, index: u16, status: u16) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        if !conn.room(notices(IOV_LIMIT))? {
            return Ok(());
        }
        if let Some(Flight::Coop(shared)) = conn.slots.flight(index)
            && !match &shared.what {
                CopyWork::One { .. } => coop::pages_are_present(&mut conn.reach, shared),
                CopyWork::List(work) => coop_list::listed_pages_are_present(&mut conn.reach, shared.dir, work),
            }
        {
            return Ok(());
        }
        let Some(Flight::Coop(shared)) = conn.slots.land(index) else { return Ok(()) };
        conn.coop -= 1;
        let result = match shared.what {
            CopyWork::One { .. } => coop::finish(self, &shared, status),
            CopyWork::List(_) => coop_list::finish(self, &shared, status),
        };
        if let (Err(Error { code: Code::Path, .. }), Some(conn)) = (&result, &mut self.conn)
            && let Some(job) = coop::again(&shared)
        {
            conn.rerouted = false;
            conn.backlog.push_front(Job::Rma(Box::new(job)));
            return Ok(());
        }
        let gone = peer_gone(&result);
        self.end(&shared.end, result);
        gone
    }

    /// Starts waiting operations, in the order of posting, until one is blocked or the time is over.
    fn pump_backlog(&mut self, domain: &Domain) -> Result<()> {
        let start = time::ticks();
        loop {
            let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
            let Some(mut job) = conn.backlog.pop_front() else { return Ok(()) };
            if job.is_held() {
                conn.backlog.push_front(job);
                return Ok(());
            }
            let step = match &mut job {
                Job::Rma(job) => self.start_rma(domain, job),
                Job::Atomic(job) => self.start_atomic(job),
                Job::Send(job) => self.start_send(domain, job),
            };
            match step {
                Step::Done(result) => {
                    let (mut end, gone) = (*job.ending(), peer_gone(&result));
                    // The operation that finds the peer gone gets an entry, even if it is an inject call without one.
                    end.silent &= gone.is_ok();
                    self.end(&end, result);
                    gone?;
                }
                Step::InFlight => {}
                Step::Blocked => {
                    if let Some(conn) = &mut self.conn {
                        conn.backlog.push_front(job);
                    }
                    return Ok(());
                }
            }
            if time::ticks().wrapping_sub(start) > BACKLOG_TICKS {
                return Ok(());
            }
        }
    }

    /// True if the last turn ended before all work was done. No packet announces that work, so the caller must not
    /// sleep.
    pub fn has_more(&self) -> bool {
        let room = self.bind.rx.as_ref().is_none_or(|q| q.has_room());
        let waits = self.conn.as_ref().is_some_and(|conn| conn.offer_waits);
        let fits = !(waits || self.unexpected.is_empty() || self.recvs.is_empty());
        let came = self.rx.as_ref().is_some_and(|rx| !rx.is_empty()) || fits;
        room && came || self.conn.as_ref().is_some_and(|conn| conn.helping.is_some())
    }

    /// Reads the control socket and checks the deadlines. `thorough`: also asks if the peer's process lives.
    #[cold]
    pub fn control(&mut self, domain: &Domain, thorough: bool) {
        let _held = cancel::CancelDisabled::off();
        let now = time::ticks();
        let since = now.wrapping_sub(std::mem::replace(&mut self.last_control, now));
        self.controls = self.controls.wrapping_add(1);
        match self.phase {
            Phase::Connecting(_) => cm::advance(self, domain),
            Phase::Connected => {
                let mut result = self.read_packets(domain);
                // The socket hangs up at the peer's end, unless a child of the peer still holds it. So the process is
                // checked too.
                let due = thorough || since > SELDOM_TICKS || self.controls & 63 == 0;
                if result.is_ok() && due && self.conn.as_ref().is_some_and(|c| c.link.peer_ended()) {
                    result = self.peer_left(domain);
                }
                if let Err(e) = result {
                    self.down(domain, e);
                }
            }
            _ => {}
        }
        if let Some(conn) = self.conn.as_deref_mut()
            && conn.devices.is_idle()
        {
            conn.remotes.sweep(&conn.link);
        }
        self.end_quiet_operations();
        let now = time::now_ns();
        if self.faults.is_some() {
            self.release_held(now);
        }
        recv::expire_receives(self, now);
        if self.faults.is_some() {
            self.match_posted(domain);
        }
        if self.conn.is_some() {
            self.expire(domain, now);
        }
    }

    /// Reads packets of the control socket, up to 16.
    fn read_packets(&mut self, domain: &Domain) -> Result<()> {
        let mut buf = [0u8; frame::MAX];
        for _ in 0..16 {
            let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
            if !conn.remotes.imports.to_ask.is_empty() {
                conn.ask_for_files();
            }
            let (len, fds) = match frame::recv(&conn.link.socket, &mut buf)? {
                socket::Received::Nothing => return Ok(()),
                socket::Received::Closed => return self.peer_left(domain),
                socket::Received::Packet { len, fds, .. } => (len, fds),
            };
            match Frame::decode(&buf[..len]).map_err(|e| Error::coded(e.errno, Code::PeerBroke, e.words))? {
                Frame::Wake if self.sleepers > 0 => self.renew_sleep(domain)?,
                Frame::Wake => {}
                Frame::FileAsk(id) => {
                    let regions = domain.regions.lock();
                    let file = regions.files.get(id).filter(|f| f.regions > 0);
                    let answer = Frame::FileBring { id, size: file.map_or(0, |f| f.size()), found: file.is_some() };
                    let fd: Vec<_> = file.and_then(|f| f.fd()).into_iter().collect();
                    if !socket::send(conn.link.socket.as_fd(), &answer.encode(), &fd)? {
                        return Err(protocol("the peer requests memory files without receiving the answers"));
                    }
                }
                Frame::FileBring { id, size, found } => {
                    conn.remotes.file_answered(&conn.link, id, size, found, fds.first().filter(|_| found).map(|f| f.as_fd()))
                }
                Frame::Bye => return self.peer_left(domain),
                _ => return Err(protocol("the peer sent its handshake message twice")),
            }
        }
        Ok(())
    }

    /// Sets the sleep mark again and takes the messages that came before. Called after this thread has read a wake
    /// packet that may have been meant for another thread, which still sleeps.
    #[cold]
    fn renew_sleep(&mut self, domain: &Domain) -> Result<()> {
        if let Some(conn) = &self.conn {
            conn.link.renew_sleep();
        }
        self.turn(domain)
    }

    /// Handles a peer that has closed or died: takes the messages that the peer has written completely, and then ends
    /// the connection.
    fn peer_left(&mut self, domain: &Domain) -> Result<()> {
        // Only the lines that the ring can hold now are read, so the loop ends even if the peer goes on writing.
        let end = self.rx.as_ref().map_or(0, |rx| rx.passed() + rx.lines() as u64);
        while self.rx.as_ref().is_some_and(|rx| !rx.is_empty() && rx.passed() < end) {
            if self.bind.rx.as_ref().is_some_and(|q| !q.has_room()) {
                // Messages stay in the ring until the caller has read entries and made room in the queue.
                return Ok(());
            }
            // After the end of the connection, no caller takes parcels out of the ring.
            self.drain(domain, false)?;
        }
        let _ = self.poll_slots();
        Err(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer closed the connection or died"))
    }

    /// Ends operations whose deadline has passed, as soon as the peer cannot touch their buffers.
    fn expire(&mut self, domain: &Domain, now: u64) {
        let late = |end: &Ending| end.deadline != 0 && end.deadline <= now;
        let Some(conn) = self.conn.as_deref_mut() else { return };
        let flights: Vec<u16> =
            conn.slots.active.iter().copied().filter(|i| conn.slots.flight(*i).is_some_and(|f| late(f.ending()))).collect();
        for index in flights {
            let error = Error::late("the peer did not complete the operation");
            let Some(conn) = self.conn.as_deref_mut() else { return };
            let grace = conn.slots.flight(index).map_or(0, |f| f.ending().deadline) + config::get().close_ms * 1_000_000;
            match leaving::withdraw(conn, index) {
                true => self.land(index, Err(error)),
                false if now > grace => return self.down(domain, error),
                false => {}
            }
        }
        let Some(conn) = self.conn.as_deref_mut() else { return };
        let grace = config::get().close_ms * 1_000_000;
        if conn.devices.deadlines().any(|d| d != 0 && now > d + grace) {
            let error = Error::coded(errno::ETIMEDOUT, Code::Deadline, "a device's copy did not end by its deadline");
            return self.down(domain, error);
        }
        if conn.backlog.iter().any(|j| late(j.ending())) {
            let error = Error::late("the operation did not complete");
            self.drop_jobs(|j| late(j.ending()), &error);
        }
    }
}

/// `Err`: the error of an operation that found the peer's process gone. Such an error ends the connection.
fn peer_gone(result: &Result<()>) -> Result<()> {
    match result {
        Err(e) if e.code == Code::PeerGone => Err(e.clone()),
        _ => Ok(()),
    }
}
