// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a connection, and of single operations before it.
//!
//! A completion entry promises that no process touches the operation's buffer any more. So while the peer or a device
//! may still use the buffer of an operation, the operation gets no entry, and what is left of the connection stays
//! (`State::leaving`). So it is after any end of the connection, and however long a stopped peer takes.

use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::mr::piece;
use crate::prov::event::{EventKind, tell_end};
use crate::prov::shm::domain::Domain;
use crate::prov::shm::state::arrivals::Unexpected;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::in_flight::Flight;
use crate::prov::shm::state::job::Job;
use crate::prov::shm::state::{EndedConnection, Phase, State};
use crate::prov::shm::wire::frame::Frame;
use crate::prov::shm::wire::message::{STATUS_SEND_FRAGMENTS, kind, mark, slot_word};
use crate::sync::ring::Header;
use crate::sys::{cancel, socket, time};
use std::os::fd::AsFd;

impl EndedConnection {
    /// The error of an `ep_close` that comes while buffers are in use.
    pub fn busy(&self) -> Error {
        let words = match self.conn.devices.len() {
            0 => format!(
                "ep: process {} still uses {} buffer(s) of ended operations and makes no progress; call gdrfab_ep_close() again",
                self.conn.link.pid,
                self.conn.slots.active.len()
            ),
            n => format!("ep: {n} copies by {} have not ended; call gdrfab_ep_close() again", self.conn.devices.who()),
        };
        Error::new(errno::EBUSY, words)
    }
}

impl State {
    /// Ends the connection and its operations. An operation whose buffer is still in use ends later, by
    /// [`State::end_quiet_operations`]. A buffer that nobody uses any more is *quiet*.
    pub fn tear(&mut self, domain: &Domain, why: &Error) {
        self.rx = None;
        let Some(mut conn) = self.conn.take() else {
            return self.flush_receives(why);
        };
        conn.link.tear();
        // Told by Bye, the peer ends its part. If the socket is full, the peer notices the end of the socket instead.
        let _ = socket::send(conn.link.socket.as_fd(), &Frame::Bye.encode(), &[]);
        domain.sweep_links();
        let backlog = std::mem::take(&mut conn.backlog);
        let incoming = std::mem::take(&mut conn.rendezvous_in);
        self.leaving = Some(Box::new(EndedConnection { conn, why: why.clone() }));
        // Device copies end by themselves. Waiting here lets a peer that waits for them learn of their end without
        // another turn.
        let until = time::now_ns() + config::get().close_ms * 1_000_000;
        loop {
            self.end_quiet_operations();
            if self.leaving.as_ref().is_none_or(|l| l.conn.devices.is_idle()) || time::now_ns() > until {
                break;
            }
            std::thread::yield_now();
        }
        for job in &backlog {
            let end = *job.ending();
            self.fail(&end, why.clone());
        }
        for incoming in incoming.into_iter().flatten() {
            self.abandon(&incoming.recv, why.clone());
        }
        self.unexpected.retain(|u| matches!(u, Unexpected::Eager { .. }));
        self.flush_receives(why);
    }

    /// Ends the operations of an ended connection whose buffers have become quiet.
    pub fn end_quiet_operations(&mut self) {
        let Some(mut leaving) = self.leaving.take() else { return };
        let conn = &mut *leaving.conn;
        for end in conn.devices.take_ended(&conn.link) {
            self.end(&end, Err(leaving.why.clone()));
        }
        if conn.devices.is_idle() {
            conn.link.leave();
        }
        let mut peer_left = None;
        for index in conn.slots.active.clone() {
            if !is_quiet(conn, index) && !*peer_left.get_or_insert_with(|| conn.link.peer_left()) {
                continue;
            }
            let Some(flight) = conn.slots.land(index) else { continue };
            let report = conn.link.mine.slot(index as usize).reported(conn.slots.generation[index as usize]);
            let finished = report.chunks > 0 && report.status == 0 && matches!(flight, Flight::Ack { .. } | Flight::Rendezvous { .. });
            let end = *flight.ending();
            self.end(&end, if finished { Ok(()) } else { Err(leaving.why.clone()) });
        }
        if !leaving.conn.slots.active.is_empty() || !leaving.conn.devices.is_idle() {
            self.leaving = Some(leaving);
        }
    }

    /// Fails the queued jobs that `which` picks; returns their count.
    pub fn drop_jobs(&mut self, which: impl Fn(&Job) -> bool, error: &Error) -> usize {
        let Some(conn) = self.conn.as_deref_mut() else { return 0 };
        let (gone, kept): (Vec<Job>, Vec<Job>) = conn.backlog.drain(..).partition(|j| which(j));
        conn.backlog.extend(kept);
        for job in &gone {
            if let Job::Rma(rma) = job
                && let Some(slot) = rma.slot()
            {
                conn.slots.release(slot);
                conn.staged -= 1;
            }
        }
        for job in &gone {
            let end = *job.ending();
            self.fail(&end, error.clone());
        }
        gone.len()
    }

    /// Ends the connection because of `why`: ends all outstanding operations, and puts the event Shutdown into the
    /// event queue.
    #[cold]
    pub fn down(&mut self, domain: &Domain, why: Error) {
        let _held = cancel::CancelDisabled::off();
        tell_end(self.object, &self.peer_address(), &why);
        self.tear(domain, &why);
        self.phase = Phase::Down(why.clone());
        let error = (why.code != Code::PeerGone && why.code != Code::Canceled).then_some(why);
        if error.is_some() {
            self.event(EventKind::Shutdown, Vec::new(), error);
        }
        self.event(EventKind::Shutdown, Vec::new(), None);
    }

    /// Ends the flight in slot `index`.
    pub fn land(&mut self, index: u16, result: Result<()>) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        let Some(flight) = conn.slots.land(index) else { return };
        let mut result = result;
        if let (Ok(()), Flight::Read { bounce: Some((site, bytes)), pieces, .. }) = (&result, &flight) {
            result = piece::store(*site, pieces.as_slice(), 0, bytes).map_err(|e| Error::coded(e.errno, Code::Fault, e.words));
        }
        match flight {
            Flight::Ack { staged: Some(_), .. } | Flight::Read { .. } => conn.staged -= 1,
            Flight::Coop(_) => conn.coop -= 1,
            _ => {}
        }
        let end = *flight.ending();
        self.end(&end, result);
    }
}

/// True if the peer does not touch the buffers of an operation any more and never will. Withdraws an operation that the
/// peer has not begun.
fn is_quiet(conn: &mut Conn, index: u16) -> bool {
    let (slot, generation) = (conn.link.mine.slot(index as usize), conn.slots.generation[index as usize]);
    let report = slot.reported(generation);
    match conn.slots.flight(index) {
        // A rendezvous has one chunk. If this side can still claim the chunk, the receiver has not begun.
        Some(Flight::Rendezvous { sent: None, .. }) => {
            report.chunks > 0 || report.status == STATUS_SEND_FRAGMENTS || matches!(slot.stop(generation, 0, 1), Ok(1))
        }
        Some(Flight::Coop(shared)) => report.status != 0 || report.chunks >= shared.owed(),
        // All other operations go through the ring, which this side fills and empties.
        _ => true,
    }
}

/// As `is_quiet`, while the connection goes on. A receiver that waits for fragments is told that no more come. False:
/// the caller tries again later.
pub fn withdraw(conn: &mut Conn, index: u16) -> bool {
    let generation = conn.slots.generation[index as usize];
    let by_fragments = match conn.slots.flight(index) {
        Some(Flight::Rendezvous { sent: Some(_), .. }) => true,
        Some(Flight::Rendezvous { .. }) => conn.link.mine.slot(index as usize).reported(generation).status == STATUS_SEND_FRAGMENTS,
        _ => false,
    };
    if by_fragments { give_up(conn, index) } else { is_quiet(conn, index) }
}

/// Tells the receiver that no more fragments of a message come; false: the ring has no room.
pub fn give_up(conn: &mut Conn, slot: u16) -> bool {
    let header = Header { kind: kind::FRAGMENT, flags: mark::LAST, words: 2, bytes: 0 };
    if !matches!(conn.tx.room(header.lines()), Ok(true)) {
        return false;
    }
    let word = slot_word(slot, conn.slots.generation[slot as usize]);
    conn.put_words(kind::FRAGMENT, mark::LAST, &[word, 0]);
    true
}
