// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One turn of progress of an endpoint. A turn sends waiting frames, handles frames that arrived, acknowledges writes,
//! and from time to time examines deadlines, streams, rails and the peer. The file also has the completions that the
//! peer does not cause: by deadline, by cancelling, and by the loss of the connection.

use crate::error::{Code, Error, Result, errno};
use crate::prov::bind::Ending;
use crate::prov::event::{EventKind, tell_end};
use crate::prov::tcp::conn::{Conn, StreamsState, WriteStatus};
use crate::prov::tcp::connect::cm;
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::recv::Unexpected;
use crate::prov::tcp::state::{Phase, State};
use crate::prov::tcp::stream::body::Owner;
use crate::prov::tcp::stream::incoming::BodyEnd;
use crate::prov::tcp::stream::tx::Departed;
use crate::prov::tcp::wire::frame::{Header, Kind};
use crate::sys::{cancel, socket, stream, time};

/// Least number of CPU ticks between two calls of `look`.
const LOOK: u64 = 100_000;
/// Most time that `say_goodbye` waits.
const GOODBYE_MS: u64 = 200;

impl State {
    /// Takes one turn. `force`: this is the last turn before the calling thread sleeps.
    #[inline]
    pub fn progress(&mut self, domain: &Domain, force: bool) {
        if self.conn.is_some() {
            let quiet = if force { None } else { self.quiet_turn(domain) };
            if let Err(e) = quiet.unwrap_or_else(|| self.turn(domain, force)) {
                self.fail_connection(domain, e);
            }
        }
        if self.conn.is_none() && !self.recvs.is_empty() {
            self.deliver_remaining();
        }
        self.turns = self.turns.wrapping_add(1);
        if force || (self.turns & 15 == 0 && time::ticks().wrapping_sub(self.last_look) > LOOK) {
            self.look(domain);
        }
        self.leave_idle_sets_if_active();
    }

    /// A full turn of an endpoint with a connection.
    fn turn(&mut self, domain: &Domain, force: bool) -> Result<()> {
        if force || !self.conn.as_ref().is_some_and(|c| c.may_batch_in_turn()) {
            self.flush();
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let Conn { fd, member, rx, .. } = conn;
        rx.begin_turn();
        let told = |member| domain.pollset.turn(member, std::os::fd::AsFd::as_fd(fd));
        let may_have = member.as_mut().is_none_or(told) || force || rx.is_amid();
        let came = may_have && self.receive(domain)?;
        self.end_turn(came, force || self.is_unattended(domain))
    }

    /// True if no work may be left for a later call. A thread of the library drives this endpoint, or a thread that is
    /// about to sleep, and the program itself may never call again.
    #[inline]
    pub fn is_unattended(&self, domain: &Domain) -> bool {
        domain.auto || self.sleepers > 0
    }

    /// The second half of a turn. `came`: something arrived in the first half.
    #[inline]
    pub fn end_turn(&mut self, came: bool, force: bool) -> Result<()> {
        if !self.unexpected.is_empty() && !self.recvs.is_empty() {
            self.match_unexpected();
        }
        self.came |= came;
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        conn.send_acks(came, force);
        if !conn.tx.is_empty() && !conn.tx.blocked && (force || !conn.may_batch_in_turn()) {
            self.flush();
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        // Frames that the peer sent before the connection ended are handled first, in as many turns as this takes.
        if conn.end_reason.is_some() && !came {
            return self.end_if_drained();
        }
        Ok(())
    }

    /// Ends the connection, unless frames that arrived before its end are still to be handled.
    #[cold]
    fn end_if_drained(&mut self) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        // If the completion queue is full, arrived messages are delivered once the program has read the queue.
        let full = self.bind.rx.as_ref().is_some_and(|q| !q.has_room());
        if full && (conn.rx.has_bytes() || conn.rx.body.as_ref().is_some_and(|b| b.all_came())) {
            return Ok(());
        }
        if conn.rx.awaits_stripes() {
            return Ok(());
        }
        // A device's copies of the last body may still be under way.
        let copying = conn.rx.body.as_ref().is_some_and(|b| b.all_came());
        match conn.end_reason.clone() {
            Some(why) if !copying => Err(why),
            _ => Ok(()),
        }
    }

    /// Sends waiting bytes, and completes the operations whose last byte left.
    #[inline]
    pub fn flush(&mut self) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if conn.tx.is_empty() {
            // The rails have their own turn (`look_at_rails`), which may have made room.
            conn.tx.blocked &= conn.tx.is_full();
            return;
        }
        let Conn { fd, tx, end_reason, writes, .. } = conn;
        let waited = tx.blocked;
        // The kernel accepts one more call for a connection that the peer has closed, and would lose its bytes
        // silently. After a pause the connection is therefore examined first.
        let sent = match tx.has_rested() && socket::hung_up(&fd) {
            true => Err(Error::fixed(errno::EPIPE, "the peer closed the connection or died")),
            false => tx.flush(std::os::fd::AsFd::as_fd(fd)),
        };
        if let Err(e) = sent {
            // The peer may have sent something before it closed the connection. Such bytes are still to be read.
            end_reason.get_or_insert(if e.code == Code::Fault { e } else { super::inbound::gone(&e) });
            if let Some(last) = writes.back_mut() {
                // The last write may be the one that this very call injected, and whose caller still waits: its failure can be
                // reported.
                last.end.silent = false;
            }
        }
        if self.sleepers > 0 && tx.blocked && !waited {
            // The sleeping threads do not watch the socket for room yet.
            self.bind.wake_sleepers();
        }
        if !tx.departed.is_empty() {
            self.complete_departed();
        }
    }

    /// Completes the operations of bodies and marks that have left.
    fn complete_departed(&mut self) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        for departed in std::mem::take(&mut conn.tx.departed) {
            match departed {
                Departed::Mark(end) => self.bind.succeed(&end),
                Departed::Body(body) => {
                    let Some(conn) = self.conn.as_deref_mut() else { return };
                    match (body.owner, body.why, body.end) {
                        (Owner::Answer { list }, ..) => {
                            conn.answers -= 1;
                            conn.list_answers -= usize::from(list);
                        }
                        (_, None, Some(end)) => self.bind.succeed(&end),
                        (Owner::Write(sequence), Some(why), early) => self.end_write(sequence, early, why),
                        (_, Some(why), Some(end)) => self.fail(&end, why),
                        (Owner::Send(Some(number)), Some(why), None) => self.end_send(number, why),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Completes a write whose memory could not be read, with this side's reason, which the target does not know.
    /// `early`: the write's completion, if it was to be reported when the bytes are out.
    fn end_write(&mut self, sequence: u32, early: Option<Ending>, why: Error) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        let open = conn.write(sequence).and_then(|op| match std::mem::replace(&mut op.status, WriteStatus::Ended) {
            WriteStatus::Pending => Some(op.end),
            _ => None,
        });
        if let Some(end) = early.or(open) {
            self.fail(&end, why);
        }
    }

    /// As `end_write`, for a message that is offered or that the receiver confirms.
    fn end_send(&mut self, number: u64, why: Error) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if let Some(at) = conn.sends.iter().position(|s| s.number == number)
            && let Some(op) = conn.sends.remove(at)
        {
            self.fail(&op.end, why);
        }
    }

    /// The rare part of a turn: looks after connecting, streams, rails, the peer, held operations and deadlines.
    #[cold]
    fn look(&mut self, domain: &Domain) {
        self.last_look = time::ticks();
        if matches!(self.phase, Phase::Connecting { .. }) {
            cm::advance(self, domain);
        }
        if self.conn.as_ref().is_some_and(|c| !matches!(c.streams_state, StreamsState::None)) {
            let now = time::now_ns();
            self.look_at_streams(now);
            self.tune_streams(now);
        }
        if self.conn.as_ref().is_some_and(|c| c.connector.is_some()) {
            // No socket announces that the rails are over, so a full turn is taken at once.
            if self.look_at_rails(time::now_ns())
                && let Err(e) = self.turn(domain, false)
            {
                self.fail_connection(domain, e);
            }
        }
        if self.conn.is_some() {
            self.look_at_peer(domain, time::now_ns());
        }
        if self.faults.is_some() {
            self.release_held(domain, time::now_ns());
        }
        if self.earliest != 0 {
            let now = time::now_ns();
            if now >= self.earliest {
                self.expire(now);
                self.flush();
            }
        }
    }

    /// Completes operations and receives whose deadline has passed, and finds the next deadline.
    fn expire(&mut self, now: u64) {
        let late = |end: &Ending| end.deadline != 0 && end.deadline <= now;
        self.end_operations(late, &Error::late("the operation did not complete"), usize::MAX);
        let unfilled = Error::coded(errno::ETIMEDOUT, Code::Deadline, "no message came before the receive's deadline");
        self.end_receives(|deadline, _| deadline != 0 && deadline <= now, &unfilled, usize::MAX);
        let mut earliest = u64::MAX;
        let mut seen = |deadline: u64| {
            if deadline != 0 {
                earliest = earliest.min(deadline);
            }
        };
        self.recvs.iter().for_each(|r| seen(r.deadline));
        if let Some(conn) = self.conn.as_deref() {
            conn.writes.iter().filter(|w| w.status == WriteStatus::Pending).for_each(|w| seen(w.end.deadline));
            conn.reads.iter().filter(|r| !r.over).for_each(|r| seen(r.end.deadline));
            conn.sends.iter().for_each(|s| seen(s.end.deadline));
            conn.tx.each_end(|end| seen(end.deadline));
            conn.fetches.iter().filter_map(|t| t.recv.as_ref()).for_each(|r| seen(r.deadline));
            if let Some(BodyEnd::Message { recv: Some(recv), .. }) = conn.rx.body.as_ref().map(|b| &b.at_end) {
                seen(recv.deadline);
            }
        }
        if let Some(faults) = &self.faults {
            faults.deadlines().for_each(&mut seen);
        }
        self.earliest = if earliest == u64::MAX { 0 } else { earliest };
    }

    /// Completes up to `most` operations that `which` picks, with the error `why`; returns their number. The memory of
    /// these operations is not touched afterwards, whatever the peer still sends.
    fn end_operations(&mut self, which: impl Fn(&Ending) -> bool, why: &Error, most: usize) -> usize {
        let mut ended: Vec<Ending> = Vec::new();
        let Some(conn) = self.conn.as_deref_mut() else { return 0 };
        for i in 0..conn.writes.len() {
            let Some(op) = conn.writes.get_mut(i).filter(|op| op.status == WriteStatus::Pending && which(&op.end)) else { continue };
            if ended.len() == most {
                break;
            }
            op.status = WriteStatus::Ended;
            ended.push(op.end);
            conn.tx.give_up(Owner::Write(conn.acked.wrapping_add(1 + i as u32)), why);
        }
        for i in 0..conn.reads.len() {
            let Some(op) = conn.reads.get_mut(i).filter(|op| !op.over && which(&op.end)) else { continue };
            if ended.len() == most {
                break;
            }
            op.over = true;
            ended.push(op.end);
            // The answer that is arriving, if one is, belongs to the oldest READ.
            if i == 0
                && let Some(body) = conn.rx.body.as_mut().filter(|b| matches!(b.at_end, BodyEnd::Answer))
            {
                body.divert(&mut conn.rx.lanes, why.clone());
            }
        }
        let mut i = 0;
        while i < conn.sends.len() && ended.len() < most {
            match conn.sends.get(i).filter(|op| which(&op.end)).map(|op| op.number) {
                Some(number) => {
                    ended.extend(conn.sends.remove(i).map(|op| op.end));
                    conn.tx.give_up(Owner::Send(Some(number)), why);
                }
                None => i += 1,
            }
        }
        for (end, owner) in conn.tx.take_ends(&which, why, most - ended.len()) {
            ended.push(end);
            if let Owner::Write(sequence) = owner
                && let Some(op) = conn.write(sequence)
            {
                op.status = WriteStatus::Ended;
            }
        }
        if let Some(faults) = &mut self.faults {
            ended.extend(faults.take(&which, |_| false, most - ended.len()).0);
        }
        ended.iter().for_each(|end| self.fail(end, why.clone()));
        ended.len()
    }

    /// As `end_operations`, for receives. `which` picks a receive by its deadline and context.
    fn end_receives(&mut self, which: impl Fn(u64, usize) -> bool, why: &Error, most: usize) -> usize {
        let mut ended = Vec::new();
        let mut i = 0;
        while i < self.recvs.len() && ended.len() < most {
            match self.recvs.get(i).is_some_and(|r| which(r.deadline, r.context)) {
                true => ended.extend(self.recvs.remove(i)),
                false => i += 1,
            }
        }
        if let Some(conn) = self.conn.as_deref_mut() {
            for t in &mut conn.fetches {
                if ended.len() < most && t.recv.as_ref().is_some_and(|r| which(r.deadline, r.context)) {
                    ended.extend(t.recv.take());
                }
            }
            let Conn { rx, .. } = conn;
            if ended.len() < most
                && let Some(body) = rx.body.as_mut()
                && let BodyEnd::Message { recv, .. } = &mut body.at_end
                && recv.as_ref().is_some_and(|r| which(r.deadline, r.context))
            {
                ended.extend(recv.take());
                body.divert(&mut rx.lanes, why.clone());
            }
        }
        if let Some(faults) = &mut self.faults {
            ended.extend(faults.take(|_| false, |r| which(r.deadline, r.context), most - ended.len()).1);
        }
        ended.iter().for_each(|recv| self.abandon(recv, why.clone()));
        ended.len()
    }

    /// Cancels the first operation or receive with this `context`.
    pub fn cancel(&mut self, context: usize) -> Result<()> {
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "cancelled by the caller");
        if self.end_receives(|_, c| c == context, &why, 1) + self.end_operations(|end| end.context == context, &why, 1) == 0 {
            return Err(Error::new(errno::ENOENT, "context: no operation of this endpoint with it can still be cancelled"));
        }
        self.flush();
        Ok(())
    }

    /// Ends a connection that has failed: everything outstanding completes with `why`, and the event queue gets the events.
    #[cold]
    pub fn fail_connection(&mut self, domain: &Domain, why: Error) {
        let _held = cancel::CancelDisabled::off();
        tell_end(self.object, &self.peer_address(), &why);
        self.end_everything(domain, &why);
        self.enter_down(why);
    }

    /// Enters `Phase::Down` and queues the events for it.
    pub fn enter_down(&mut self, why: Error) {
        self.phase = Phase::Down(why.clone());
        let error = (why.code != Code::PeerGone && why.code != Code::Canceled).then_some(why);
        if error.is_some() {
            self.event(EventKind::Shutdown, Vec::new(), error);
        }
        self.event(EventKind::Shutdown, Vec::new(), None);
    }

    /// Closes the connection and completes everything outstanding with `why`.
    pub fn end_everything(&mut self, domain: &Domain, why: &Error) {
        if let Some(faults) = &mut self.faults {
            let (ends, receives) = faults.take(|_| true, |_| true, usize::MAX);
            ends.iter().for_each(|end| self.fail(end, why.clone()));
            receives.iter().for_each(|recv| self.abandon(recv, why.clone()));
        }
        let Some(mut conn) = self.conn.take() else { return self.flush_receives(why) };
        self.acceptor = None;
        stream::finish(conn.socket());
        if let Some(rails) = conn.rails() {
            let mut rails = rails.lock();
            self.stats.rails_lost += rails.losses();
            rails.finish();
        }
        if let Some(streams) = &conn.rx.streams {
            streams.finish();
        }
        conn.member.iter().for_each(|member| domain.pollset.leave(member));
        let mut ended: Vec<Ending> = Vec::new();
        let mut receives = Vec::new();
        if let Some(mut body) = conn.rx.body.take() {
            body.divert(&mut conn.rx.lanes, why.clone());
            if let BodyEnd::Message { recv, .. } = body.at_end {
                receives.extend(recv);
            }
        }
        for departed in conn.tx.take_all() {
            let end = match departed {
                Departed::Mark(end) => Some(end),
                Departed::Body(body) => body.end,
            };
            // Bytes that are still queued have certainly not arrived, so injected operations report the loss, too.
            ended.extend(end.map(|end| Ending { silent: end.silent && why.code != Code::PeerGone, ..end }));
        }
        ended.extend(conn.writes.iter().filter(|w| w.status == WriteStatus::Pending).map(|w| w.end));
        ended.extend(conn.reads.iter().filter(|r| !r.over).map(|r| r.end));
        ended.extend(conn.sends.iter().map(|s| s.end));
        receives.extend(conn.fetches.drain(..).filter_map(|t| t.recv));
        drop(conn);
        ended.iter().for_each(|end| self.fail(end, why.clone()));
        receives.iter().for_each(|recv| self.abandon(recv, why.clone()));
        self.unexpected.retain(|u| matches!(u, Unexpected::Buffered { .. }));
        self.flush_receives(why);
    }

    /// After the end of the connection: delivers messages that arrived before the end and then waited for room in the
    /// completion queue.
    #[cold]
    fn deliver_remaining(&mut self) {
        let Phase::Down(why) = &self.phase else { return };
        let why = why.clone();
        self.match_unexpected();
        if self.unexpected.is_empty() {
            self.flush_receives(&why);
        }
    }

    /// Completes all posted receives with the error `why`.
    fn flush_receives(&mut self, why: &Error) {
        for recv in std::mem::take(&mut self.recvs) {
            self.abandon(&recv, why.clone());
        }
    }

    /// Number of operations that fault injection holds.
    #[inline]
    pub fn held(&self) -> usize {
        self.faults.as_ref().map_or(0, |f| f.held())
    }

    /// Sends BYE behind everything queued, and waits until all bytes have left, at most `GOODBYE_MS`.
    pub fn say_goodbye(&mut self) {
        let until = time::now_ns() + GOODBYE_MS * 1_000_000;
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if conn.end_reason.is_some() || !conn.ready {
            return;
        }
        if !conn.tx.has_bodies() {
            conn.send_acks(false, true);
            conn.put(Header::new(Kind::Bye, 0, 0));
        }
        loop {
            self.flush();
            let Some(conn) = self.conn.as_deref_mut() else { return };
            let now = time::now_ns();
            let rails = conn.rails();
            // Bytes that a rail has buffered are lost if the rail is lost, so the loop waits until the peer has the bytes.
            let over = match &rails {
                Some(rails) => conn.tx.is_empty() && rails.lock().is_settled(),
                None => conn.tx.is_empty(),
            };
            if over || conn.end_reason.is_some() || now > until {
                return;
            }
            if rails.is_some() {
                stream::wait_for_any(conn.socket(), (until - now) / 1_000_000);
                continue;
            }
            let blocked = conn.tx.streams.as_ref().and_then(|streams| streams.first_blocked()).filter(|_| conn.tx.is_scattering());
            stream::wait_for_room(blocked.unwrap_or(conn.socket()), (until - now) / 1_000_000);
        }
    }
}
