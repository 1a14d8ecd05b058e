// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a connection, and of single operations before it. An entry is a promise that nobody touches the operation's
//! buffer any more, so an operation whose buffer the peer or a device still has keeps what is left of the connection until it
//! is quiet, however the connection ended and however long a stopped peer takes.

use super::conn::{Conn, Flight, STATUS_SEND_FRAGMENTS};
use super::domain::Domain;
use super::frame::Frame;
use super::state::{State, Unexpected};
use super::{coop, device, rendezvous};
use crate::config;
use crate::error::{Error, errno};
use crate::sys::{socket, time};
use std::os::fd::AsFd;

/// A connection that is over.
pub struct Leaving {
    conn: Box<Conn>,
    why: Error,
}

impl Leaving {
    /// Why the endpoint cannot be closed yet.
    pub fn busy(&self) -> Error {
        let words = match self.conn.devices.len() {
            0 => format!(
                "ep: process {} has {} buffer(s) of operations that are over, and does not go on; call ep_close again",
                self.conn.link.pid,
                self.conn.slots.active.len()
            ),
            n => format!("ep: {n} copies of {} have not ended; call ep_close again", self.conn.devices.who()),
        };
        Error::new(errno::EBUSY, words)
    }
}

impl State {
    /// Ends everything that hangs on the connection: at once what is quiet, the rest by [`State::settle`].
    pub fn tear(&mut self, domain: &Domain, why: &Error) {
        self.rx = None;
        let Some(mut conn) = self.conn.take() else {
            return self.flush_receives(why);
        };
        conn.link.tear();
        // The peer ends its part, and says so; one whose socket is full learns it from the socket's end.
        let _ = socket::send(conn.link.socket.as_fd(), &Frame::Bye.encode(), &[]);
        domain.sweep_links();
        let backlog = std::mem::take(&mut conn.backlog);
        let incoming = std::mem::take(&mut conn.rendezvous_in);
        self.leaving = Some(Box::new(Leaving { conn, why: why.clone() }));
        // Copies of a device end by themselves; the peer, who may wait for them, learns it here rather than at a next turn.
        let until = time::now_ns() + config::get().close_ms * 1_000_000;
        loop {
            self.settle();
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

    /// Ends the operations of a connection that is over whose buffers have become quiet.
    pub fn settle(&mut self) {
        let Some(mut leaving) = self.leaving.take() else { return };
        let conn = &mut *leaving.conn;
        for end in device::take_ended(conn) {
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
}

/// Whether the peer neither touches the buffers of a flight nor will; what it has not begun is taken back from it.
fn is_quiet(conn: &mut Conn, index: u16) -> bool {
    let (slot, generation) = (conn.link.mine.slot(index as usize), conn.slots.generation[index as usize]);
    let report = slot.reported(generation);
    match &conn.slots.flights[index as usize] {
        // One chunk that is still ours means that the receiver has not begun.
        Some(Flight::Rendezvous { sent: None, .. }) => {
            report.chunks > 0 || report.status == STATUS_SEND_FRAGMENTS || matches!(slot.stop(generation, 0, 1), Ok(1))
        }
        Some(Flight::Coop(shared)) => report.status != 0 || report.chunks >= coop::owed(shared),
        // Everything else goes through the ring, which this side fills and empties.
        _ => true,
    }
}

/// As `is_quiet` while the connection goes on: a receiver that counts on fragments must learn that none come. False: try
/// again.
pub fn withdraw(conn: &mut Conn, index: u16) -> bool {
    let generation = conn.slots.generation[index as usize];
    let by_fragments = match &conn.slots.flights[index as usize] {
        Some(Flight::Rendezvous { sent: Some(_), .. }) => true,
        Some(Flight::Rendezvous { .. }) => conn.link.mine.slot(index as usize).reported(generation).status == STATUS_SEND_FRAGMENTS,
        _ => false,
    };
    if by_fragments { rendezvous::give_up(conn, index) } else { is_quiet(conn, index) }
}
