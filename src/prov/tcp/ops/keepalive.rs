// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detects a dead peer: the kernel of a live peer acknowledges data, however long its program computes without reading. While no
//! data is unacknowledged, this side's kernel watches the peer by TCP keepalive. Rails are watched by `rail`.

use crate::config;
use crate::error::{Code, Error, errno};
use crate::prov::tcp::conn::{Conn, Keepalive};
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::rail::transport::WriteTransport;
use crate::prov::tcp::state::State;
use crate::sys::health::Health;
use crate::sys::time::ticks;
use std::os::fd::{AsFd, BorrowedFd};

/// The least and the longest time between two queries of the kernel.
const PAUSE_NS: (u64, u64) = (10_000_000, 10_000_000_000);
/// Number of queries in the time after which a peer counts as dead.
const LOOKS: u64 = 16;

impl Conn {
    /// The time of the next query, in ns; `u64::MAX`: there is nothing to query before something is sent.
    pub fn keepalive_due(&self) -> u64 {
        let quiet = self.tx.last <= self.keepalive.clear || matches!(self.tx.write_transport, Some(WriteTransport::Rails(_)));
        if quiet || config::get().tcp.timeout_ms == 0 { u64::MAX } else { self.keepalive.due }
    }

    /// Queries the kernel if a query is due. Returns the error of a peer that counts as dead.
    pub fn check_peer(&mut self, now: u64) -> Option<Error> {
        let limit = config::get().tcp.timeout_ms;
        if now < self.keepalive_due() {
            return None;
        }
        let Conn { fd, rx, tx, keepalive, .. } = self;
        let Keepalive { health, due, clear } = keepalive;
        *clear = if tx.is_empty() { ticks() } else { 0 };
        health.resize(1 + rx.streams.as_ref().map_or(0, |streams| streams.count()), Health::default());
        let mut left = (u64::from(limit) * 1_000_000 / LOOKS).clamp(PAUSE_NS.0, PAUSE_NS.1);
        let mut ask = |index: usize, fd: BorrowedFd<'_>| {
            let Some(health) = health.get_mut(index) else { return };
            health.update(fd, now);
            if health.queued > 0 {
                *clear = 0;
            }
            left = left.min(health.patience_ns(limit, now).unwrap_or(u64::MAX));
        };
        ask(0, fd.as_fd());
        if let Some(streams) = &rx.streams {
            streams.each(false, |index, fd, _| ask(index + 1, fd));
        }
        *due = now + left;
        let why = || format!("the peer is gone: its host did not answer for {limit} ms (GDRFAB_TCP_TIMEOUT_MS)");
        (left == 0).then(|| Error::coded(errno::ECONNRESET, Code::PeerGone, why()))
    }
}

impl State {
    /// Ends the connection to a peer that has died silently.
    pub fn look_at_peer(&mut self, domain: &Domain, now: u64) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        let Some(why) = conn.check_peer(now) else { return };
        // Frames that the peer sent before are handled first.
        conn.end_reason.get_or_insert(why);
        if let Err(e) = self.end_turn(false, false) {
            self.fail_connection(domain, e);
        }
    }
}
