// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An endpoint as a lane of a connectionless endpoint. Its parcels are ring messages of the kind `PARCEL`, which go
//! straight from the ring to the taker in the layer above (`prov/lane.rs`). Other messages go through `progress.rs`.

use super::endpoint::Endpoint;
use super::limits::{BUDGET, WINDOW};
use super::state::State;
use crate::config::RING_MOST;
use crate::error::{Error, Result, errno};
use crate::prov::op::{IOV_LIMIT, Iov, total};
use crate::prov::shm::ops::msg::credit;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::parcel::QueuedParcel;
use crate::prov::shm::wire::layout::SegmentRef;
use crate::prov::shm::wire::message::{broken, kind, protocol};
use crate::prov::{Lane, ParcelSink};
use crate::sync::area;
use crate::sync::cache_line::LINE_BYTES;
use crate::sync::consumer::Message;
use crate::sync::ring::Header;

/// Most fixed words of a parcel, which stand in front of its bytes.
const WORDS: usize = 32;
/// Most turns in a row that only take parcels, before a full turn of progress.
const FULL_TURN: u32 = 15;
/// Turns in a row after which a refused first parcel no longer stays in the ring, where it holds up all messages behind
/// it: then it is queued.
const REFUSALS: u8 = 16;

impl State {
    /// Queues a parcel out of the ring, to reach the messages behind it, while no taker is there.
    pub fn on_parcel(&mut self, message: &Message<'_, SegmentRef>) -> Result<()> {
        if self.parcels.len() as u64 > WINDOW {
            return Err(protocol("the peer sent more lane parcels than its window allows"));
        }
        let mut bytes = vec![0u8; message.header.bytes.into()];
        message.copy_into(0, &mut bytes);
        let words = (0..message.header.words.into()).map(|i| message.word(i)).collect();
        self.parcels.push_back(QueuedParcel { words, bytes: bytes.into() });
        Ok(())
    }

    /// Hands out the parcels that `on_parcel` has queued. False: `each` has refused one.
    fn take_queued(&mut self, each: &mut dyn ParcelSink) -> bool {
        while let Some(parcel) = self.parcels.front() {
            if !each.take(parcel) {
                return false;
            }
            self.parcels.pop_front();
            self.refusals = 0;
            self.count_match();
        }
        true
    }

    /// Hands out parcels straight from the ring, up to a message of another kind. False: `each` has refused one.
    fn take_ring(&mut self, each: &mut dyn ParcelSink) -> Result<bool> {
        for _ in 0..BUDGET {
            let Some(rx) = &mut self.rx else { return Ok(true) };
            let mut cursor = rx.cursor();
            if let Some(parcel) = cursor.one_line(kind::PARCEL) {
                if !each.take_short(parcel) {
                    return Ok(false);
                }
                self.refusals = 0;
                cursor.skip();
                let head = cursor.head();
                rx.pass(head);
                self.count_match();
                continue;
            }
            match rx.front().map_err(broken)? {
                Some(message) if message.header.kind == kind::PARCEL => {
                    if !each.take(&message) {
                        return Ok(false);
                    }
                    self.refusals = 0;
                    message.finish();
                }
                _ => return Ok(true),
            }
            self.count_match();
        }
        Ok(true)
    }

    /// The fast turn: hands out parcels straight from the ring. `None`: there is other work, so a full turn must
    /// follow. True: `each` has refused a parcel.
    #[inline(always)]
    fn take_short(&mut self, each: &mut dyn ParcelSink) -> Option<bool> {
        if !self.parcels.is_empty() {
            return None;
        }
        let rx = self.rx.as_mut()?;
        let mut cursor = rx.cursor();
        let (mut n, mut goes_on, mut rest) = (0, true, false);
        while n < BUDGET as u64 {
            if cursor.is_empty() {
                rest = true;
                break;
            }
            let Some(parcel) = cursor.one_line(kind::PARCEL) else { break };
            goes_on = each.take_short(parcel);
            if !goes_on {
                break;
            }
            cursor.skip();
            n += 1;
        }
        let head = cursor.head();
        if n > 0 {
            rx.pass(head);
            self.matched += n;
            if self.matched - self.published >= WINDOW / 4 {
                self.publish_matches();
            }
        }
        if goes_on && !rest {
            (goes_on, rest, n) = self.take_long(each, n)?;
        }
        self.refusals = if n > 0 { 0 } else { self.refusals.saturating_add(u8::from(!goes_on)) };
        let over = (rest || !goes_on)
            && has_only_messages(self.conn.as_deref()?)
            && self.polls & FULL_TURN != FULL_TURN
            && self.refusals < REFUSALS;
        self.polls = self.polls.wrapping_add(u32::from(over));
        over.then_some(!goes_on)
    }

    /// Continues `take_short` after `n` parcels, with parcels of any length. Returns true if `each` has refused none,
    /// true if the ring is empty, and the count of parcels taken.
    #[inline(never)]
    fn take_long(&mut self, each: &mut dyn ParcelSink, mut n: u64) -> Option<(bool, bool, u64)> {
        while n < BUDGET as u64 {
            let rx = self.rx.as_mut()?;
            if rx.is_empty() {
                return Some((true, true, n));
            }
            if let Some((parcel, end)) = rx.short_out_of_line(&rx.cursor(), kind::PARCEL) {
                if !each.take_short(parcel) {
                    return Some((false, false, n));
                }
                rx.pass_out_of_line(end);
                self.count_match();
                n += 1;
                continue;
            }
            // A broken message ends this loop; the next full turn reports it.
            let Some(message) = self.rx.as_mut()?.front().ok()? else { return Some((true, true, n)) };
            if message.header.kind != kind::PARCEL {
                self.refusals = if n > 0 { 0 } else { self.refusals };
                return None;
            }
            if !each.take(&message) {
                return Some((false, false, n));
            }
            message.finish();
            self.count_match();
            n += 1;
        }
        Some((true, false, n))
    }
}

/// True if a parcel that is sent now overtakes no operation, and both the peer's window and the ring have room for the
/// parcel.
fn may_go(conn: &mut Conn, header: Header) -> Result<bool> {
    Ok(conn.is_clear() && credit(conn)? && conn.room(header)?)
}

/// As `put_short`, for parcels longer than a line.
#[inline(never)]
fn put_out_of_line(conn: &mut Conn, words: &[u64], from: Iov) -> bool {
    let went = (area::FROM..=RING_MOST).contains(&from.len()) && conn.tx.write_bytes_out_of_line(kind::PARCEL, words, from);
    if went {
        conn.link.nudge();
        conn.sent += 1;
        if !conn.may_send() {
            conn.look_at_peer();
        }
    }
    went
}

/// True if nothing but messages is in flight.
#[inline(always)]
fn has_only_messages(conn: &Conn) -> bool {
    conn.slots.active.len() | conn.devices.len() | conn.reads_out.len() | conn.backlog.len() == 0 && conn.helping.is_none()
}

impl Lane for Endpoint {
    fn max(&self) -> usize {
        RING_MOST
    }

    fn put(&self, words: &[u64], bytes: &[Iov]) -> Result<bool> {
        let mut guard = self.state.lock();
        let s = &mut *guard;
        let len = total(bytes).unwrap_or(usize::MAX);
        if words.len() > WORDS || bytes.len() > IOV_LIMIT || len > RING_MOST {
            return Err(Error::fixed(errno::EMSGSIZE, "internal error: a lane parcel does not fit into the ring"));
        }
        let Some(conn) = s.conn.as_deref_mut() else { return Err(s.not_connected()) };
        let header = Header { kind: kind::PARCEL, flags: 0, words: words.len() as u8, bytes: len as u16 };
        match may_go(conn, header) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(e) => {
                s.down(&self.domain, e.clone());
                return Err(e);
            }
        }
        conn.tx.write(header, words, bytes);
        conn.link.nudge();
        conn.sent += 1;
        s.stats.sends += 1;
        Ok(true)
    }

    fn put_short(&self, words: &[u64], from: Iov) -> bool {
        let mut guard = self.state.lock();
        let s = &mut *guard;
        let Some(conn) = s.conn.as_deref_mut() else { return false };
        if !conn.is_clear() || !conn.may_send() || !conn.tx.is_open() {
            return false;
        }
        if from.len() > LINE_BYTES.saturating_sub(words.len() * 8) {
            let went = put_out_of_line(conn, words, from);
            s.stats.sends += u64::from(went);
            return went;
        }
        // One call for each count of words, because each is compiled with the offset in the line as a constant.
        match *words {
            [first] => conn.tx.write_line_behind(kind::PARCEL, &[first], from),
            [first, tag] => conn.tx.write_line_behind(kind::PARCEL, &[first, tag], from),
            [first, tag, data] => conn.tx.write_line_behind(kind::PARCEL, &[first, tag, data], from),
            _ => return false,
        }
        conn.tx.claim_ahead(s.rx.as_ref().map_or(0, |rx| rx.passed()));
        conn.link.nudge();
        conn.sent += 1;
        s.stats.sends += 1;
        if !conn.may_send() {
            conn.look_at_peer();
        }
        true
    }

    fn take(&self, force: bool, each: &mut dyn ParcelSink) -> bool {
        let Some(mut s) = (if force { Some(self.state.lock()) } else { self.state.try_lock() }) else { return true };
        match s.take_short(each) {
            Some(works) if !force => works,
            _ => {
                let works = s.rx.as_ref().is_some_and(|rx| !rx.is_empty()) || !s.conn.as_deref().is_some_and(has_only_messages);
                self.full_turn(&mut s, force, each);
                works
            }
        }
    }

    /// Hands out all parcels that have arrived. The parcels lie in the ring, so the turn does not look at the control
    /// socket.
    fn take_all(&self, each: &mut dyn ParcelSink) {
        self.full_turn(&mut self.state.lock(), false, each);
    }

    fn lose(&self, why: Error) {
        self.state.lock().down(&self.domain, why);
    }
}

impl Endpoint {
    /// A full turn of progress, with parcels to hand out.
    #[inline(never)]
    fn full_turn(&self, s: &mut State, force: bool, each: &mut dyn ParcelSink) {
        let goes_on = self.take_parcels(s, each);
        s.refusals = s.refusals.saturating_add(u8::from(!goes_on));
        // The turn leaves parcels in the ring: those behind other messages for the second look below, a refused one for
        // the next turn.
        s.taking = goes_on || (!force && s.refusals < REFUSALS);
        s.progress(&self.domain, force);
        if std::mem::take(&mut s.taking) && goes_on {
            self.take_parcels(s, each);
        }
    }

    /// Hands out the queued parcels and then the parcels in the ring. False: `each` has refused one.
    fn take_parcels(&self, s: &mut State, each: &mut dyn ParcelSink) -> bool {
        s.take_queued(each)
            && s.take_ring(each).unwrap_or_else(|e| {
                s.down(&self.domain, e);
                true
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::bind::{Binding, INJECT_FLAGS};
    use crate::prov::op::Common;
    use crate::prov::ops::OpFlags;
    use crate::prov::queue::Queue;
    use crate::prov::shm::domain::Domain;
    use crate::prov::{Endpoint as _, Parcel};
    use crate::sync::cursor::ShortMessage;
    use crate::sync::serial::Threading;
    use std::sync::Arc;

    struct All(usize);

    impl ParcelSink for All {
        fn take(&mut self, _parcel: &dyn Parcel) -> bool {
            self.0 += 1;
            true
        }

        fn take_short(&mut self, _parcel: ShortMessage<'_>) -> bool {
            self.take(&QueuedParcel { words: Box::default(), bytes: Box::default() })
        }
    }

    #[test]
    fn parcels_in_front_of_another_message_end_a_row_of_refusals() {
        let ends = [(); 2].map(|()| Endpoint::open(Arc::new(Domain::open(Threading::Safe, true, false).unwrap()), 0));
        for ep in &ends {
            let queue = Arc::new(Queue::new(100, Threading::Safe).unwrap());
            ep.bind(Binding::Cq { queue, source: None, transmit: true, receive: true, selective: false }).unwrap();
            ep.bind(Binding::Eq(Arc::default())).unwrap();
            ep.enable(OpFlags::default()).unwrap();
        }
        let [a, b] = &ends;
        let (of_a, of_b) = (a.address().unwrap(), b.address().unwrap());
        a.connect_addr(&of_b).unwrap();
        b.connect_addr(&of_a).unwrap();
        let bytes = [7u8; 200];
        // SAFETY: the bytes outlive the call.
        let long = unsafe { Iov::of(&bytes) };
        while !a.put(&[1], &[long]).unwrap_or(false) || b.state.lock().rx.is_none() {
            ends.iter().for_each(|ep| ep.progress(true));
        }
        b.state.lock().refusals = REFUSALS - 1;
        a.send(&[long], &Common { flags: INJECT_FLAGS, ..Common::default() }, &[]).unwrap();
        let mut all = All(0);
        while all.0 == 0 {
            b.take(false, &mut all);
        }
        assert_eq!((all.0, b.state.lock().refusals), (1, 0));
    }
}
